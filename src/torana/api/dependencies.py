"""The dependencies of handlers: the services, the principal of the request, and the required scopes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from starlette.requests import Request

from torana.api.services import Services
from torana.errors import ScopeMissing, Unauthorized
from torana.messages import EVERYONE, Principal, Scope, utc_now
from torana.store.rows.audit import Act

#: Seconds after which the token of a request is checked again: its user may be erased meanwhile.
_SLOW = 1.0


def services_of(request: Request) -> Services:
    """Return the services of the gateway that serves a request."""
    services: Services = request.state.services
    return services


def current_principal(request: Request) -> Principal:
    """Return the principal that the authentication middleware found."""
    principal: Principal = request.state.principal
    return principal


async def check_token(request: Request) -> None:
    """Raise ``Unauthorized`` if the token ended while the request waited, or while its body arrived."""
    if time.monotonic() - request.state.authenticated_at < _SLOW:
        return
    if not await services_of(request).people.tokens.is_active(current_principal(request)):
        raise Unauthorized(headers={"WWW-Authenticate": 'Bearer realm="torana", error="invalid_token"'})


class Slots(Protocol):
    """Slots that users get in turn, such as ``FairSlots``."""

    def slot(self, user: str) -> AbstractAsyncContextManager[None]:
        """Wait for a slot, and hold it in the block."""
        ...


@asynccontextmanager
async def slot_of(request: Request, slots: Slots) -> AsyncGenerator[None]:
    """Wait for a slot of the principal, and hold it in the block. Raises ``check_token``'s error."""
    async with slots.slot(current_principal(request).sharer):
        await check_token(request)
        yield


def act(request: Request) -> Act:
    """Return the author, the source and the time of a request, for the audit record."""
    address = request.client.host if request.client else "unknown"
    return Act(principal=current_principal(request).name, source=address, at=utc_now())


def oversight(request: Request) -> Act | None:
    """Return the ``act`` of the request if the principal sees the data of all users, else None.

    Only acts on the data of other users are recorded.
    """
    return act(request) if current_principal(request).view == EVERYONE else None


class RequiredScopes:
    """A dependency of a path that answers 403 to a token with none of the scopes, before anything is read.

    A token that is bound to no user can reach the data of several users, so it also needs the scope in
    ``unbound``.
    """

    def __init__(self, *scopes: Scope, unbound: Scope | None = None) -> None:
        self._scopes = scopes
        self._unbound = unbound
        names = ", ".join(f"`{scope}`" for scope in scopes)
        self.missing = f"The token needs {'one of the scopes' if len(scopes) > 1 else 'the scope'} {names}."
        if unbound is not None:
            self.missing += f" A token that is bound to no user needs `{unbound}`."

    async def __call__(self, request: Request) -> None:
        """Raise ``ScopeMissing`` for a token without the scopes, or ``check_token``'s error."""
        await check_token(request)
        principal = current_principal(request)
        is_missing = principal.scopes.isdisjoint(self._scopes)
        if self._unbound is not None and principal.user is None:
            is_missing = is_missing or self._unbound not in principal.scopes
        if is_missing:
            raise ScopeMissing(self.missing)
