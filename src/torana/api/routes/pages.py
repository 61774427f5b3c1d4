"""The HTML pages: the console, and the documentation of the API. Every link is relative.

The OpenAPI document does not contain them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import jinja2
from fastapi import APIRouter, FastAPI, Request
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from torana.api.routes.router import NamedRoute
from torana.api.serving.console_page import console_response

#: The documentation loads nothing and runs nothing.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

router = APIRouter(include_in_schema=False, route_class=NamedRoute)


@router.get("/")
async def console(request: Request) -> Response:
    """Return the console, or a page with a link to it if another site opens it on a gateway without a token.

    Otherwise that site could choose the view, and time the clicks of a person who does not expect the console.
    """
    is_foreign = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if is_foreign and not request.app.state.guarded:
        return HTMLResponse(_make_once(request.app, _entrance_page), headers=_HEADERS)
    return await console_response(request, status=200, headers={})


@router.get("/api")
async def prefix() -> Response:
    return RedirectResponse("api/", status_code=307)


@router.get("/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(_make_once(request.app, _docs_page), headers=_HEADERS)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return Response(_make_once(request.app, _openapi_bytes), media_type="application/json")


def _entrance_page(_app: FastAPI) -> bytes:
    return _templates().get_template("entrance.html").render().encode()


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


@cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(loader=jinja2.PackageLoader("torana.api"), autoescape=True, trim_blocks=True)
    templates.filters["code"] = _code
    return templates


def _code(text: str) -> Markup:
    """Return a text as HTML, with the parts between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before
