"""What a request may do: its principal, and the scopes that its path asks for."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request

from torana.errors import ScopeMissing
from torana.messages import EVERYONE, Principal, Scope, utc_now
from torana.store.audit import Act


def who(request: Request) -> Principal:
    """Who asks, as the authentication in front of every handler found out."""
    principal: Principal = request.state.principal
    return principal


def act(request: Request) -> Act:
    """The act that a request is, for the audit record."""
    address = request.client.host if request.client else "unknown"
    return Act(principal=who(request).name, source=address, at=utc_now())


def oversight(request: Request) -> Act | None:
    """The act that a request is, where its principal sees everybody's; others act on their own alone."""
    return act(request) if who(request).view == EVERYONE else None


def needs(*scopes: Scope, unbound: Scope | None = None) -> Any:
    """A dependency of a path that any of the scopes opens; other tokens get 403 before anything is read.

    A token that is bound to nobody needs the scope ``unbound`` too: what it reaches there others may have made.
    """

    async def checked(request: Request) -> None:
        principal = who(request)
        if principal.scopes.isdisjoint(scopes):
            raise ScopeMissing(f"The token lacks the scope for this; it needs {' or '.join(scopes)}.")
        if unbound is not None and principal.user is None and unbound not in principal.scopes:
            raise ScopeMissing(f"The token is bound to nobody, and for this such a one needs {unbound}.")

    return Depends(checked)
