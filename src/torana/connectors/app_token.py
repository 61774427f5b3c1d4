"""The token with which an app calls its platform, and which lasts for an hour or two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx

from torana.connectors.base import TryLater

T = TypeVar("T")

#: So many seconds before its time is over a token is used no more.
_EARLY = 300.0


class Stale(TryLater):
    """The token ended before its time."""


class AppToken:
    """One token for all calls of an app; of those that find it ended one asks for a new one."""

    def __init__(self, *, ask: Callable[[httpx.AsyncClient], Awaitable[tuple[str, float]]]) -> None:
        """``ask`` asks the platform for a token, and returns it with the seconds that it lasts."""
        self._ask = ask
        self._lock = asyncio.Lock()
        self._token, self._until = "", 0.0

    async def use(self, http: httpx.AsyncClient, call: Callable[[str], Awaitable[T]]) -> T:
        """Call with the token; once more with a new one where the call raises ``Stale``."""
        token = await self._fresh(http)
        try:
            return await call(token)
        except Stale:
            return await call(await self._fresh(http, instead_of=token))

    async def _fresh(self, http: httpx.AsyncClient, *, instead_of: str = "") -> str:
        async with self._lock:
            if time.monotonic() >= self._until or self._token == instead_of:
                self._token, lasts = await self._ask(http)
                self._until = time.monotonic() + lasts - _EARLY
            return self._token
