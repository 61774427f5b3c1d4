"""What is kept of a user: handed over, or erased."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import IO, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic.alias_generators import to_camel

from torana.api import shapes
from torana.api.access import act, needs
from torana.api.openapi import COMMON, documented, with_headers
from torana.api.services import NO_STORE, Services
from torana.api.user_ids import UserInPath
from torana.errors import Conflict, NotFound
from torana.people.erasure import Receipt

_ZIP = "application/zip"
_CHUNK = 256 * 1024  # bytes sent at once


class _ZipResponse(StreamingResponse):
    media_type = _ZIP


def add_people(router: APIRouter, services: Services) -> None:
    """``/v1/users/{id}`` and its export."""

    @router.get(
        "/v1/users/{user_id}/export",
        dependencies=[needs("admin")],
        response_class=_ZipResponse,
        responses=documented(*COMMON, NotFound) | {200: _export_answer()},
        summary="Everything that is kept of a user, as a zip file",
    )
    async def export_user(request: Request, user: UserInPath) -> Response:
        done = act(request)
        file = await services.people.export.write(user, done)
        return _ZipResponse(
            _sent(file),
            headers={
                **NO_STORE,
                "Content-Length": str(os.fstat(file.fileno()).st_size),
                # Without the user's id: it may hold anything.
                "Content-Disposition": f'attachment; filename="torana-user-{done.at:%Y%m%dT%H%M%SZ}.zip"',
            },
        )

    @router.delete(
        "/v1/users/{user_id}",
        dependencies=[needs("admin")],
        response_model=shapes.ReceiptBody,
        response_description="What was erased, and what was not.",
        responses=documented(*COMMON, NotFound, Conflict),
        summary="Erase everything that is kept of a user; running turns are cancelled, bound tokens revoked",
    )
    async def erase_user(request: Request, user: UserInPath) -> Response:
        receipt = await services.people.erasure.erase(user, act(request))
        return JSONResponse(_receipt_body(receipt), headers=NO_STORE)


def _export_answer() -> dict[str, Any]:
    return {
        "description": "The zip file: `manifest.json`, `sessions/<id>.jsonl`, `files.jsonl` and what it lists, "
        "`workspace/`, `memories.jsonl`, `schedules.jsonl`, `tokens.jsonl`, `approvals.jsonl`, "
        "`accounts.jsonl` and `usage.csv`.",
        "headers": with_headers("Content-Disposition"),
        "content": {_ZIP: {"schema": {"type": "string", "format": "binary"}}},
    }


async def _sent(file: IO[bytes]) -> AsyncGenerator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk


def _receipt_body(receipt: Receipt) -> dict[str, Any]:
    counts = {to_camel(name): count for name, count in asdict(receipt.counts).items()}
    return {
        "user": receipt.user,
        "erasedAt": receipt.erased_at.isoformat(),
        "counts": counts | {"files": receipt.files, "copies": receipt.copies},
        "kept": list(receipt.kept),
        "outOfReach": list(receipt.out_of_reach),
    }
