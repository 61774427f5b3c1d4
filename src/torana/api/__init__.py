"""The HTTP edge: the contract, what is added to it, and what every request passes on its way."""

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
from torana.api.approvals import add_approvals, add_tools
from torana.api.auth import Authentication
from torana.api.connections import add_connectors, add_deliveries, add_pairing
from torana.api.cors import Cors
from torana.api.edge import ApiPrefix, Methods, RequestScope, UnreadBody
from torana.api.mcp import add_mcp
from torana.api.memories import add_memories, add_memory
from torana.api.openapi import openapi_document
from torana.api.pages import add_pages, closed_door
from torana.api.people import add_people
from torana.api.problems import problem
from torana.api.routes import add_contract
from torana.api.schedules import add_schedule, add_schedules
from torana.api.services import Services
from torana.api.sessions import add_sessions
from torana.api.site import OpenGateway
from torana.api.skills import add_skill_decisions, add_skills
from torana.api.status import add_metrics, add_status
from torana.api.tokens import add_audit, add_tokens
from torana.api.turns import add_turns
from torana.api.usage import add_usage
from torana.errors import BadRequest, GatewayError, InvalidField, MethodNotAllowed, NotFound

__all__ = ["Access", "Services", "create_api", "openapi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may reach the gateway."""

    token: str | None
    allowed_hosts: Sequence[str]
    cors_origins: Sequence[str]


def create_api(services: Services, access: Access) -> ASGIApp:
    """The whole HTTP application."""
    router = _router(services, guarded=access.token is not None)
    app: ASGIApp = Methods(router, allowed=_allowed_methods(router.routes))
    authenticate = services.people.tokens.authenticate
    app = Authentication(app, token=access.token, authenticate=authenticate, closed_door=closed_door())
    if access.token is None:
        app = OpenGateway(app, allowed_hosts=access.allowed_hosts, origins=access.cors_origins)
    app = RequestScope(UnreadBody(ApiPrefix(app)))
    return Cors(app, origins=access.cors_origins) if access.cors_origins else app


def openapi(*, guarded: bool) -> dict[str, Any]:
    """The OpenAPI document of a gateway with a token or without one, for which none has to run."""
    uncalled = cast("Services", None)  # only handlers read them, and no request comes to these
    return openapi_document(_router(uncalled, guarded=guarded), guarded=guarded)


def _router(services: Services, *, guarded: bool) -> FastAPI:
    app = FastAPI(
        title="Torana",
        version=__version__,
        description="A gateway in front of an LLM agent: every accepted message is answered, once, in order. "
        "Every path answers under `/api/` too; HEAD where GET does, but for event "
        "streams and exports; OPTIONS tells the methods in `Allow`.",
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    # Added to the one router: an included router keeps its routes to itself, and Allow must know them all.
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
        return problem(_translated(error, allowed(request.scope["path"])), request)

    @app.exception_handler(RequestValidationError)
    async def unfitting(request: Request, error: RequestValidationError) -> Response:
        return problem(_unfitting(error), request)

    @app.exception_handler(GatewayError)
    async def gateway_error(request: Request, error: GatewayError) -> Response:
        return problem(error, request)

    @app.exception_handler(Exception)
    async def bug(request: Request, _error: Exception) -> Response:
        return problem(GatewayError(), request)

    return app


def _translated(error: HTTPException, allowed: list[str]) -> GatewayError:
    """What the framework raises, as one of ours."""
    if error.status_code == 404:
        return NotFound()
    if error.status_code == 405:
        return MethodNotAllowed(headers={"Allow": ", ".join(allowed)})
    return BadRequest(str(error.detail))


def _unfitting(error: RequestValidationError) -> GatewayError:
    """What the framework says of the parameters it parses: there is no such path, or a query is wrong."""
    faults = error.errors()
    if any(fault["loc"][0] == "path" for fault in faults):
        return NotFound()
    return InvalidField("; ".join(f"`{fault['loc'][-1]}`: {fault['msg']}" for fault in faults) + ".")


def _allowed_methods(routes: Sequence[BaseRoute]) -> Callable[[str], list[str]]:
    """A function from a path to the methods it takes.

    There is HEAD where there is GET, unless that sends what it makes meanwhile: such a stream may have no end,
    or be an act that is written down, and is not to be run for its headers alone.
    """

    def allowed(path: str) -> list[str]:
        methods: set[str] = set()
        for route in routes:
            if isinstance(route, Route) and route.path_regex.match(path):
                own = route.methods or set()
                methods |= own
                if "GET" in own and not _streams(route):
                    methods.add("HEAD")
        return sorted(methods | {"OPTIONS"}) if methods else []

    return allowed


def _streams(route: Route) -> bool:
    kind: object = route.response_class if isinstance(route, APIRoute) else None
    return isinstance(kind, type) and issubclass(kind, StreamingResponse)
