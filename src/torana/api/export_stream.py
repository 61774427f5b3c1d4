"""Stream a session as a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.responses import StreamingResponse

from torana.api.middleware.request_scope import ResponseAborted
from torana.api.openapi import with_headers
from torana.api.session_export import file_name, format_message, head
from torana.errors import GatewayError
from torana.messages import ExportFormat
from torana.sessions.listing import Session, SessionMessage

JSON_LINES = "application/x-ndjson"

_MEDIA_TYPES: Mapping[ExportFormat, str] = {"jsonl": JSON_LINES, "markdown": "text/markdown; charset=utf-8"}


class ExportStream(StreamingResponse):
    """All messages of a session, with one page in memory at a time.

    If the session is deleted or the token ends during the export, the connection is closed, so that the client
    sees that the file is incomplete.
    """

    media_type = JSON_LINES

    def __init__(
        self,
        session: Session,
        form: ExportFormat,
        pages: AsyncGenerator[Sequence[SessionMessage]],
        *,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        """``check`` is called for each page; its error ends the export."""
        super().__init__(
            _write_export(session, form, pages, check),
            media_type=_MEDIA_TYPES[form],
            headers={
                "Cache-Control": "no-store",
                "Content-Disposition": f'attachment; filename="{file_name(session, form)}"',
            },
        )


def export_answer() -> dict[str, Any]:
    """Return the OpenAPI description of the export."""
    return {
        "description": "The messages, the oldest first.",
        "headers": with_headers("Content-Disposition"),
        "content": {JSON_LINES: {}, "text/markdown": {}},
    }


async def _write_export(
    session: Session,
    form: ExportFormat,
    pages: AsyncGenerator[Sequence[SessionMessage]],
    check: Callable[[], Awaitable[None]],
) -> AsyncGenerator[str]:
    yield head(session, form)
    try:
        async for page in pages:
            await check()
            yield "".join(format_message(message, form) for message in page)
    except GatewayError as error:
        raise ResponseAborted(error.detail) from error
