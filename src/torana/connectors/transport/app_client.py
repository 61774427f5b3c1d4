"""The HTTP client of an app, which calls its platform with an access token that it renews."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar

import httpx2

from torana.connectors.base import OutcomeUnknown, PermanentError, RetryLater
from torana.connectors.transport.http import (
    ANSWER_LIMIT,
    as_object,
    read_bounded,
    read_json,
    request_json,
    translate_errors,
)
from torana.supervision import cancel_with_grace
from torana.web.cookies import refuse_cookies

T = TypeVar("T")

#: Timeout, in seconds, for one step of a call.
_SECONDS = 30.0
#: A token is renewed this many seconds before it expires.
_RENEWAL_MARGIN = 300.0


class Stale(RetryLater):
    """The platform no longer accepts the token."""


class AppClient(ABC):
    """A platform's HTTP API, called as the app. Only one of several concurrent calls requests a new token."""

    platform: ClassVar[str]
    #: The header with the token, and the format of its value.
    authorization: ClassVar[tuple[str, str]]

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._lock = asyncio.Lock()
        self._token, self._until = "", 0.0
        self._refused: PermanentError | None = None
        self._is_refused = asyncio.Event()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until the platform refuses the app's credentials; then raise its ``PermanentError``."""
        working = asyncio.create_task(work)
        refused = asyncio.create_task(self._is_refused.wait())
        try:
            await asyncio.wait({working, refused}, return_when=asyncio.FIRST_COMPLETED)
            if self._refused is not None:
                raise self._refused
            await working
        finally:
            refused.cancel()
            await cancel_with_grace(working)

    def client(self) -> httpx2.AsyncClient:
        """Return a new HTTP client; the caller closes it."""
        return httpx2.AsyncClient(base_url=self._base_url, timeout=_SECONDS, cookies=refuse_cookies())

    async def call(
        self, http: httpx2.AsyncClient, method: str, path: str, body: object = None
    ) -> dict[str, Any]:
        """Call a method of the API with the token, and return the JSON object of its response."""
        return await self._use_token(http, partial(self._request, http, method, path, body))

    async def _request(
        self,
        http: httpx2.AsyncClient,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        response, content = await request_json(self.platform, http, method, path, body=body, headers=headers)
        return self._check(response, as_object(content))

    async def _download(
        self, http: httpx2.AsyncClient, url: str, limit: int, headers: Mapping[str, str] | None = None
    ) -> bytes:
        with translate_errors(self.platform):
            async with http.stream("GET", url, headers=headers) as response:
                if response.status_code != 200:
                    self._check(response, as_object(read_json(await read_bounded(response, ANSWER_LIMIT))))
                return await read_bounded(response, limit)

    async def _use_token(
        self, http: httpx2.AsyncClient, call: Callable[[Mapping[str, str]], Awaitable[T]]
    ) -> T:
        """Make a call with the token, and repeat it with a new token if it raises ``Stale``.

        Raises ``RetryLater`` if there is no token, whatever the reason: the call is certainly not sent.
        """
        token = await self._fresh(http)
        try:
            return await call(self._header(token))
        except Stale:
            return await call(self._header(await self._fresh(http, instead_of=token)))

    def _header(self, token: str) -> Mapping[str, str]:
        name, value = self.authorization
        return {name: value.format(token)}

    async def _fresh(self, http: httpx2.AsyncClient, *, instead_of: str = "") -> str:
        async with self._lock:
            if time.monotonic() >= self._until or self._token == instead_of:
                try:
                    self._token, lasts = await self._new_token(http)
                except (OutcomeUnknown, PermanentError, LookupError, TypeError, ValueError) as error:
                    if isinstance(error, PermanentError):
                        self._refused = error
                        self._is_refused.set()
                    raise RetryLater(f"no access token: {error}") from error  # the call was not sent
                self._until = time.monotonic() + lasts - _RENEWAL_MARGIN
            return self._token

    @abstractmethod
    async def _new_token(self, http: httpx2.AsyncClient) -> tuple[str, float]:
        """Request a token, and return it with its lifetime in seconds."""

    @abstractmethod
    def _check(self, response: httpx2.Response, found: dict[str, Any]) -> dict[str, Any]:
        """Return the object of a response, or raise the connector error for a failure."""
