"""A session as a file to download, sent as it is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from starlette.responses import StreamingResponse

from torana.api.edge import BrokenOff
from torana.api.openapi import with_headers
from torana.errors import GatewayError
from torana.sessions.export import Format, file_name, head, told
from torana.sessions.listing import Message, Session

JSON_LINES = "application/x-ndjson"

_MEDIA_TYPES: Mapping[Format, str] = {"jsonl": JSON_LINES, "markdown": "text/markdown; charset=utf-8"}


class ExportStream(StreamingResponse):
    """All messages of a session, a page of them in memory at a time.

    A session that is deleted meanwhile ends the connection in the middle: what came is not to be taken for all.
    """

    media_type = JSON_LINES

    def __init__(self, session: Session, form: Format, pages: AsyncGenerator[Sequence[Message]]) -> None:
        super().__init__(
            _written(session, form, pages),
            media_type=_MEDIA_TYPES[form],
            headers={
                "Cache-Control": "no-store",
                "Content-Disposition": f'attachment; filename="{file_name(session, form)}"',
            },
        )


def export_answer() -> dict[str, Any]:
    """What the export looks like, for the OpenAPI document."""
    return {
        "description": "The messages, the oldest first.",
        "headers": with_headers("Content-Disposition"),
        "content": {JSON_LINES: {}, "text/markdown": {}},
    }


async def _written(
    session: Session, form: Format, pages: AsyncGenerator[Sequence[Message]]
) -> AsyncGenerator[str]:
    yield head(session, form)
    try:
        async for page in pages:
            yield "".join(told(message, form) for message in page)
    except GatewayError as error:
        raise BrokenOff(error.detail) from error
