"""The response with the console, the web page of the gateway."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from torana import __version__
from torana.api.files import BODY_LIMIT
from torana.console.page import build_page
from torana.message_files import FILE_LIMIT, FILES_LIMIT
from torana.messages import CONTENT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Console:
    """The bytes of the console, also compressed, and the headers of its policy."""

    body: bytes
    compressed: bytes
    headers: Mapping[str, str]


async def unauthorized_page(request: Request, headers: Mapping[str, str]) -> Response:
    """Return the console for a browser without a token, with the headers of the 401. It asks for the token."""
    return await console_response(request, status=401, headers=headers)


async def console_response(request: Request, *, status: int, headers: Mapping[str, str]) -> Response:
    """Return the console with a status and further headers."""
    made = await asyncio.to_thread(_console)  # the first call takes some 50 ms
    body, sent = made.body, {**made.headers, **headers}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, sent["Content-Encoding"] = made.compressed, "gzip"
    return HTMLResponse(body, status_code=status, headers=sent)


@cache
def _console() -> _Console:
    page = build_page(
        {
            "version": __version__,
            "contentLimit": CONTENT_LIMIT,
            "filesLimit": FILES_LIMIT,
            "fileLimit": FILE_LIMIT,
            "bodyLimit": BODY_LIMIT,
        }
    )
    headers = {
        "Content-Security-Policy": page.policy,
        # Another page that opens the console gets no access to its window.
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        "Vary": "Accept, Accept-Encoding",
    }
    return _Console(body=page.body, compressed=gzip.compress(page.body, mtime=0), headers=headers)
