"""The HTTP API: its routes and its middleware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from torana import __version__
from torana.api.middleware.authentication import Authentication
from torana.api.middleware.cors import Cors
from torana.api.middleware.request_scope import ApiPrefix, Methods, RequestScope, UnreadBody
from torana.api.middleware.same_site import OpenGateway
from torana.api.openapi import openapi_document
from torana.api.problems import problem
from torana.api.responses import NoStoreResponse
from torana.api.routes.approvals import add_approvals, add_tools
from torana.api.routes.connections import add_connectors, add_deliveries, add_pairing
from torana.api.routes.contract import add_contract
from torana.api.routes.mcp import add_mcp
from torana.api.routes.memories import add_memories, add_memory
from torana.api.routes.pages import add_pages, closed_door
from torana.api.routes.people import add_people
from torana.api.routes.schedules import add_schedule, add_schedules
from torana.api.routes.sessions import add_sessions
from torana.api.routes.skills import add_skill_decisions, add_skills
from torana.api.routes.status import add_metrics, add_status
from torana.api.routes.tokens import add_audit, add_tokens
from torana.api.routes.turns import add_turns
from torana.api.routes.usage import add_usage
from torana.api.services import Services
from torana.errors import BadRequest, GatewayError, InvalidField, MethodNotAllowed, NotFound
from torana.http11 import open_files

__all__ = ["ApiAccess", "Services", "create_api", "openapi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """The credentials, and the hosts and origins from which the API accepts requests."""

    token: str | None
    allowed_hosts: Sequence[str]
    cors_origins: Sequence[str]


def create_api(services: Services, access: ApiAccess) -> ASGIApp:
    """Return the ASGI application."""
    router = _router(services, guarded=access.token is not None)
    app: ASGIApp = Methods(router, allowed=_allowed_methods(router.routes))
    authenticate = services.people.tokens.authenticate
    app = Authentication(
        app,
        token=access.token,
        authenticate=authenticate,
        closed_door=closed_door(),
        at_once=max(8, open_files() // 32),
    )
    if access.token is None:
        app = OpenGateway(app, allowed_hosts=access.allowed_hosts, origins=access.cors_origins)
    app = RequestScope(UnreadBody(ApiPrefix(app)))
    return Cors(app, origins=access.cors_origins) if access.cors_origins else app


def openapi(*, guarded: bool) -> dict[str, Any]:
    """Return the OpenAPI document of a gateway with a token or without one. No gateway has to run."""
    uncalled = cast("Services", None)  # only handlers read them, and no handler is called
    return openapi_document(_router(uncalled, guarded=guarded), guarded=guarded)


def _router(services: Services, *, guarded: bool) -> FastAPI:
    app = FastAPI(
        title="Torana",
        version=__version__,
        description="A gateway in front of an LLM agent. It answers every accepted message once, in order. "
        "Every path also exists under `/api/`. HEAD is supported where GET is, except for event "
        "streams and exports. OPTIONS returns the methods of a path in `Allow`.",
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        default_response_class=NoStoreResponse,
    )
    # All routes are on one router, because `Allow` needs them and an included router hides its routes.
    add_contract(app.router, services)
    add_turns(app.router, services)
    add_approvals(app.router, services)
    add_tools(app.router, services)
    add_sessions(app.router, services)
    add_tokens(app.router, services)
    add_audit(app.router, services)
    add_memories(app.router, services)
    add_memory(app.router, services)
    add_schedules(app.router, services)
    add_schedule(app.router, services)
    add_people(app.router, services)
    add_usage(app.router, services)
    add_status(app.router, services)
    add_metrics(app.router, services)
    add_connectors(app.router, services)
    add_deliveries(app.router, services)
    add_pairing(app.router, services)
    add_mcp(app.router, services)
    add_skills(app.router, services)
    add_skill_decisions(app.router, services)
    add_pages(app.router, document=lambda: openapi_document(app, guarded=guarded), guarded=guarded)
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

    @app.exception_handler(Exception)
    async def bug(request: Request, _error: Exception) -> Response:
        return problem(GatewayError(), request)

    return app


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

    HEAD is allowed where GET is, except for streams: a stream may have no end, or be recorded in the audit
    record, so it is not started for its headers alone.
    """

    def allowed_methods(path: str) -> list[str]:
        methods: set[str] = set()
        for route in routes:
            if isinstance(route, Route) and route.path_regex.match(path):
                own = route.methods or set()
                methods |= own
                if "GET" in own and not _streams(route):
                    methods.add("HEAD")
        return sorted(methods | {"OPTIONS"}) if methods else []

    return allowed_methods


def _streams(route: Route) -> bool:
    kind: object = route.response_class if isinstance(route, APIRoute) else None
    return isinstance(kind, type) and issubclass(kind, StreamingResponse)
