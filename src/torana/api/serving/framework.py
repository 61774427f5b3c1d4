"""All endpoints and the OpenAPI document, by FastAPI."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from torana import __version__
from torana.api.middleware.request_scope import Methods
from torana.api.openapi import openapi_document
from torana.api.problems import problem
from torana.api.routes import (
    approvals,
    connections,
    contract,
    events,
    identity,
    mcp,
    memories,
    messages,
    pages,
    people,
    schedules,
    sessions,
    skills,
    status,
    tokens,
    turns,
    usage,
)
from torana.errors import BadRequest, GatewayError, InvalidField, MethodNotAllowed, NotFound, StoreUnavailable

#: The errors of a full disk, an exhausted quota, and a limit on file sizes.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_MODULES = (
    contract,
    messages,
    turns,
    events,
    approvals,
    sessions,
    identity,
    tokens,
    memories,
    schedules,
    people,
    usage,
    status,
    connections,
    mcp,
    skills,
    pages,
)
# One flat list, because `Allow` needs all routes and an included router hides its routes.
ROUTES: list[BaseRoute] = [route for module in _MODULES for route in module.router.routes]


def load_application(*, guarded: bool) -> ASGIApp:
    """Return the application of all endpoints; ``guarded`` if requests need a token."""
    app = _application(guarded=guarded)
    return Methods(app, allowed=_allowed_methods(app.routes))


@cache
def openapi(*, guarded: bool) -> dict[str, Any]:
    """Return the OpenAPI document of a gateway with or without a token. It needs no running gateway.

    The first call takes about 300 ms. All callers receive the same object and must not change it.
    """
    return openapi_document(_application(guarded=guarded), guarded=guarded)


def _application(*, guarded: bool) -> FastAPI:
    app = FastAPI(
        title="Torana",
        version=__version__,
        description="A gateway in front of an LLM agent. It answers every accepted message once, in order. "
        "Every path also exists under `/api/`. HEAD is supported where GET is, except for event "
        "streams and exports. OPTIONS returns the methods of a path in `Allow`.",
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        routes=ROUTES,
    )
    app.state.guarded = guarded
    app.state.openapi = partial(openapi, guarded=guarded)
    app.state.pages = {}
    allowed = _allowed_methods(app.routes)

    @app.exception_handler(HTTPException)
    async def framework_error(request: Request, error: HTTPException) -> Response:
        return problem(_translate_framework_error(error, allowed(request.scope["path"])), request)

    @app.exception_handler(RequestValidationError)
    async def invalid_parameters(request: Request, error: RequestValidationError) -> Response:
        return problem(_parameter_error(error), request)

    @app.exception_handler(GatewayError)
    async def gateway_error(request: Request, error: GatewayError) -> Response:
        return problem(error, request)

    app.add_exception_handler(OSError, _system_error)

    @app.exception_handler(Exception)
    async def bug(request: Request, _error: Exception) -> Response:
        return problem(GatewayError(), request)

    return app


async def _system_error(request: Request, error: Exception) -> Response:
    """Answer a request that failed on a full disk as if the database were full. Other errors are bugs."""
    if isinstance(error, OSError) and error.errno in _FULL_DISK:
        return problem(StoreUnavailable(), request)
    raise error


def _translate_framework_error(error: HTTPException, allowed: list[str]) -> GatewayError:
    """Return the gateway's error for an error of the web framework."""
    if error.status_code == 404:
        return NotFound()
    if error.status_code == 405:
        return MethodNotAllowed(headers={"Allow": ", ".join(allowed)})
    return BadRequest(str(error.detail))


def _parameter_error(error: RequestValidationError) -> GatewayError:
    """Return the error for invalid parameters: 404 for the path, 400 for the query."""
    faults = error.errors()
    if any(fault["loc"][0] == "path" for fault in faults):
        return NotFound()
    return InvalidField("; ".join(f"`{fault['loc'][-1]}`: {fault['msg']}" for fault in faults) + ".")


def _allowed_methods(routes: Sequence[BaseRoute]) -> Callable[[str], list[str]]:
    """Return a function that returns the methods of a path.

    HEAD is allowed on a path with GET, unless the response is a stream: a stream may never end, and its start
    may write an audit record.
    """

    def allowed_methods(path: str) -> list[str]:
        methods: set[str] = set()
        for route in routes:
            if isinstance(route, Route) and route.path_regex.match(path):
                accepted = route.methods or set()
                methods |= accepted
                if "GET" in accepted and not _streams(route):
                    methods.add("HEAD")
        return sorted(methods | {"OPTIONS"}) if methods else []

    return allowed_methods


def _streams(route: Route) -> bool:
    kind: object = route.response_class if isinstance(route, APIRoute) else None
    return isinstance(kind, type) and issubclass(kind, StreamingResponse)
