"""The few pages for people: a start page, and the interface's documentation. Every link is relative."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from torana import __version__

#: Nothing is loaded from anywhere: the pages are whole as they are.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


def add_pages(router: APIRouter, *, document: Callable[[], dict[str, Any]], guarded: bool) -> None:
    """``/``, ``/docs`` and ``/openapi.json``; the pages themselves are not part of the document.

    ``guarded`` is whether callers need a token.
    """
    templates = _templates()

    @router.get("/", include_in_schema=False)
    async def home(request: Request) -> Response:
        address = str(request.base_url).rstrip("/")
        page = templates.get_template("home.html").render(version=__version__, address=address, guarded=guarded)
        return HTMLResponse(page, headers=_HEADERS)

    @router.get("/api", include_in_schema=False)
    async def prefix() -> Response:
        return RedirectResponse("api/", status_code=307)

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        page = templates.get_template("docs.html").render(api=document(), guarded=guarded)
        return HTMLResponse(page, headers=_HEADERS)

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(document())


def closed_door() -> Callable[[Mapping[str, str]], Response]:
    """What a browser that comes without the token is shown: a function from a 401's headers to its page."""
    page = _templates().get_template("closed.html").render()
    return lambda headers: HTMLResponse(page, status_code=401, headers={**_HEADERS, **headers})


def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(loader=jinja2.PackageLoader("torana.api"), autoescape=True, trim_blocks=True)
    templates.filters["code"] = _code
    return templates


def _code(text: str) -> Markup:
    """A text with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before
