"""The HTML pages: the console, and the documentation of the API. Every link is relative.

The OpenAPI document does not contain them.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import jinja2
from fastapi import APIRouter, FastAPI, Request
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from torana import __version__
from torana.api.files import BODY_LIMIT
from torana.api.routes.router import NamedRoute
from torana.console.page import build_page
from torana.message_files import FILE_LIMIT, FILES_LIMIT
from torana.messages import CONTENT_LIMIT

#: The documentation loads nothing and runs nothing.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

router = APIRouter(include_in_schema=False, route_class=NamedRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Console:
    """The bytes of the console, also compressed, and the headers of its policy."""

    body: bytes
    compressed: bytes
    headers: Mapping[str, str]


@router.get("/")
async def console(request: Request) -> Response:
    return await _console_response(request, status=200, headers={})


@router.get("/api")
async def prefix() -> Response:
    return RedirectResponse("api/", status_code=307)


@router.get("/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(_make_once(request.app, _docs_page), headers=_HEADERS)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return Response(_make_once(request.app, _openapi_bytes), media_type="application/json")


def _docs_page(app: FastAPI) -> bytes:
    template = _templates().get_template("docs.html")
    return template.render(api=app.state.openapi(), guarded=app.state.guarded).encode()


def _openapi_bytes(app: FastAPI) -> bytes:
    return bytes(JSONResponse(app.state.openapi()).body)


def _make_once(app: FastAPI, make: Callable[[FastAPI], bytes]) -> bytes:
    """Return ``make(app)`` from its first call. Making a large page takes some 10 ms."""
    pages: dict[Callable[[FastAPI], bytes], bytes] = app.state.pages
    if make not in pages:
        pages[make] = make(app)
    return pages[make]


async def unauthorized_page(request: Request, headers: Mapping[str, str]) -> Response:
    """Return the console for a browser without a token, with the headers of the 401. It asks for the token."""
    return await _console_response(request, status=401, headers=headers)


async def _console_response(request: Request, *, status: int, headers: Mapping[str, str]) -> Response:
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


@cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(loader=jinja2.PackageLoader("torana.api"), autoescape=True, trim_blocks=True)
    templates.filters["code"] = _code
    return templates


def _code(text: str) -> Markup:
    """Return a text as HTML, with the parts between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before
