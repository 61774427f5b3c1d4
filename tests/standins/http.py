"""The base of stand-ins for platforms with an HTTP API: a server, its address, and notifications of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Self

from aiohttp import web

from torana.connectors.base import Connector
from torana.testing.connectors import PATIENCE, Line, Platform


class HttpPlatform(Platform):
    """A platform that serves on a local port while its context is entered.

    A subclass adds its routes to ``app``, announces its address only by ``url``, and calls ``stir`` after each
    change.
    """

    #: Whether a response is cancelled when its client disconnects.
    gives_up: ClassVar[bool] = False

    def __init__(self) -> None:
        self.app = web.Application(client_max_size=50 * 2**20)
        #: The server's URL, and the announced URL: see ``move``.
        self.port = 0
        self.url = ""
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(
            self.app, access_log=None, shutdown_timeout=0.1, handler_cancellation=self.gives_up
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = int(self._runner.addresses[0][1])
        self.move(f"http://127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        await self._runner.cleanup()

    def move(self, url: str) -> None:
        """Announce another URL, where a proxy passes connections on."""
        self.url = url

    async def cut(self) -> None:
        """As ``Platform``."""
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def stir(self) -> None:
        """Wake the tasks that wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, true: Callable[[], object], *, within: float = PATIENCE) -> None:
        """Wait until a condition holds; raise TimeoutError after this number of seconds."""
        async with asyncio.timeout(within):
            while not true():
                await self._changed.wait()


class SignCounter(Line):
    """A line that sets an event after three signs of life."""

    def __init__(self, connector: Connector[Any]) -> None:
        super().__init__(connector)
        self.enough = asyncio.Event()

    def alive(self) -> None:
        super().alive()
        if self.signs == 3:
            self.enough.set()
