"""The HTML pages: a start page, and the documentation of the API. Every link is relative."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from torana import __version__

#: The pages load nothing.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


def add_pages(router: APIRouter, *, document: Callable[[], dict[str, Any]], guarded: bool) -> None:
    """Add ``/``, ``/docs`` and ``/openapi.json``, which are not part of the document.

    ``guarded`` is whether the gateway has a token.
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
    """Return a function that makes the page for a browser without a token from the headers of the 401."""
    page = _templates().get_template("closed.html").render()
    return lambda headers: HTMLResponse(page, status_code=401, headers={**_HEADERS, **headers})


def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(loader=jinja2.PackageLoader("torana.api"), autoescape=True, trim_blocks=True)
    templates.filters["code"] = _code
    return templates


def _code(text: str) -> Markup:
    """Return a text as HTML, with the parts between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before
