"""Requests from many addresses."""

from __future__ import annotations

from ipaddress import IPv4Address

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ManyAddresses:
    """Changes the client's address after each 401: the gateway delays repeated failures of one address."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._address = IPv4Address("127.0.0.1")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the address, and pass the request on."""

        async def watch(message: Message) -> None:
            if message.get("status") == 401:
                self._address += 1
            await send(message)

        scope["client"] = (str(self._address), 50_000)
        await self._app(scope, receive, watch)
