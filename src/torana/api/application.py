"""The application: the endpoints behind the middleware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp

from torana.api.middleware.authentication import Authentication
from torana.api.middleware.cors import Cors
from torana.api.middleware.request_scope import ApiPrefix, RequestScope, UnreadBody
from torana.api.middleware.same_site import SameSiteCheck
from torana.api.services import Services
from torana.api.serving.console_page import unauthorized_page
from torana.api.serving.direct import DeferredApplication, Direct
from torana.http11 import open_files

__all__ = ["ApiAccess", "Services", "create_api"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """The credentials, and the hosts and origins from which the API accepts requests."""

    token: str | None
    allowed_hosts: Sequence[str]
    cors_origins: Sequence[str]


def create_api(
    services: Services, access: ApiAccess, *, on_loaded: Callable[[], None] = lambda: None
) -> ASGIApp:
    """Return the ASGI application. It calls ``on_loaded`` when it has loaded the web framework."""

    def load() -> ASGIApp:
        # Imported here to save memory: a gateway that only receives messages does not need it.
        from torana.api.serving.framework import load_application

        others = load_application(guarded=access.token is not None)
        on_loaded()
        return others

    app: ASGIApp = Authentication(
        Direct(DeferredApplication(load), services=services),
        token=access.token,
        authenticate=services.people.tokens.authenticate,
        sign_in=services.people.sign_ins.authenticate,
        unauthorized_page=unauthorized_page,
        at_once=max(8, open_files() // 32),
    )
    if access.token is None:
        app = SameSiteCheck(app, allowed_hosts=access.allowed_hosts, origins=access.cors_origins)
    app = RequestScope(UnreadBody(ApiPrefix(app)), measurements=services.turns.live.measurements)
    return Cors(app, origins=access.cors_origins) if access.cors_origins else app
