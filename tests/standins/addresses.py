"""Requests from many addresses."""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import count

from starlette.types import ASGIApp, Receive, Scope, Send


class ManyAddresses:
    """Gives each request another client address: the gateway delays repeated failures of one address."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Change the address and pass the request on."""
        scope["client"] = (str(IPv4Address("127.0.0.0") + next(self._numbers)), 50_000)
        await self._app(scope, receive, send)
