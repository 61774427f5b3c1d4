"""Export and erase the data of a user."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import IO, Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from torana.api.dependencies import act, services_of
from torana.api.openapi import problem_responses, with_headers
from torana.api.parameters import UserInPath
from torana.api.responses import NO_STORE
from torana.api.routes.router import new_router, require_scopes
from torana.api.schemas.people import ReceiptBody

router = new_router(require_scopes("admin"))

_ZIP = "application/zip"
_CHUNK = 256 * 1024  # bytes sent at once

_EXPORT: dict[str, Any] = {
    "description": "The zip file: `manifest.json`, `sessions/<id>.jsonl`, `files.jsonl` and its files, "
    "`workspace/`, `memories.jsonl`, `schedules.jsonl`, `tokens.jsonl`, `approvals.jsonl`, "
    "`accounts.jsonl` and `usage.csv`.",
    "headers": with_headers("Content-Disposition"),
    "content": {_ZIP: {"schema": {"type": "string", "format": "binary"}}},
}
_NO_USER = "The path does not contain a valid user id."


class _ZipResponse(StreamingResponse):
    media_type = _ZIP


@router.get(
    "/v1/users/{user_id}/export",
    response_class=_ZipResponse,
    responses=problem_responses({404: _NO_USER}) | {200: _EXPORT},
    summary="Export all data of a user as a zip file",
)
async def export_user(request: Request, user: UserInPath) -> Response:
    done = act(request)
    file = await services_of(request).people.export.write(user, done)
    return _ZipResponse(
        _stream_file(file),
        headers={
            **NO_STORE,
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            # Without the user's id, which can contain any character.
            "Content-Disposition": f'attachment; filename="torana-user-{done.at:%Y%m%dT%H%M%SZ}.zip"',
        },
    )


@router.delete(
    "/v1/users/{user_id}",
    response_description="The receipt: the erased data, and the data that remains.",
    responses=problem_responses(
        {
            404: _NO_USER,
            409: "Messages of the user keep arriving, so the erasure was given up.",
            503: "The gateway cannot erase the data now, for example while an export or a backup reads it.",
        }
    ),
    summary="Erase all data of a user; running turns are cancelled, and bound tokens are revoked",
)
async def erase_user(request: Request, user: UserInPath) -> ReceiptBody:
    return ReceiptBody.from_receipt(await services_of(request).people.erasure.erase(user, act(request)))


async def _stream_file(file: IO[bytes]) -> AsyncGenerator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
