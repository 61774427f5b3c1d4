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


def needs(*scopes: Scope) -> Any:
    """A dependency of a path that any of the scopes opens; other tokens get 403 before anything is read."""

    async def checked(request: Request) -> None:
        if who(request).scopes.isdisjoint(scopes):
            raise ScopeMissing(f"The token lacks the scope for this; it needs {' or '.join(scopes)}.")

    return Depends(checked)
