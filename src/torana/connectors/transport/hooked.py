"""A base for platforms that post signed events to the gateway's hook and are called with an access token."""

from __future__ import annotations

import asyncio
import hmac
import json
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import httpx2

from torana.connectors.base import (
    Connector,
    ConnectorSettings,
    HookRequest,
    HookResponse,
    IncomingMessage,
    MessageSink,
    PermanentError,
    RetryLater,
)
from torana.connectors.transport.concurrency import concurrently
from torana.connectors.transport.parsing import parse_alone
from torana.json_bounds import has_more_values
from torana.web.cookies import refuse_cookies

_TIMEOUT = 30.0
#: Maximum number of JSON values in a call.
_VALUES_LIMIT = 50_000

S = TypeVar("S", bound=ConnectorSettings)


def parse_hook_body(body: bytes) -> Any:
    """Return the JSON of a call. Raises ``ValueError`` if it is invalid or has too many values."""
    if has_more_values(body, _VALUES_LIMIT):
        raise ValueError(f"the body has more than {_VALUES_LIMIT:,} JSON values")
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error


class HookedConnector(Connector[S]):
    """A connector that verifies, parses and processes calls, while its access token is valid."""

    #: The error for an access token that the platform refuses, with the cure.
    refusal: ClassVar[str]
    #: The limits of the client's connections.
    limits: ClassVar[httpx2.Limits] = httpx2.Limits(max_connections=100, max_keepalive_connections=20)

    _sink: MessageSink | None = None
    _client: httpx2.AsyncClient

    def __init__(self, settings: S) -> None:
        super().__init__(settings)
        self._locked_out = asyncio.Event()

    async def run(self, sink: MessageSink) -> None:
        """Check the token, and accept calls until cancelled, or until the platform refuses the token."""
        async with self._open_client() as self._client:
            try:
                await self._check_access()
                self._sink = sink
                sink.ready()
                await self._locked_out.wait()
            except RetryLater:
                if not self._locked_out.is_set():
                    raise
            finally:
                self._sink = None
        raise PermanentError(self.refusal)

    async def take_calls(self, sink: MessageSink) -> None:
        async with self._open_client() as self._client:
            self._sink = sink
            try:
                await self._locked_out.wait()
            finally:
                self._sink = None

    def _open_client(self) -> httpx2.AsyncClient:
        headers = {
            "Authorization": f"Bearer {self._access_token}",
            "Accept-Encoding": "identity",  # limits on received bytes also limit the decoded content
        }
        return httpx2.AsyncClient(
            headers=headers, timeout=_TIMEOUT, limits=self.limits, cookies=refuse_cookies()
        )

    async def hook(self, request: HookRequest) -> HookResponse:
        """Process the messages of a signed call in order; a repeated message has the same id."""
        header, signature = self._signature(request.body)
        given = request.headers.get(header, "").encode(errors="replace")
        if not hmac.compare_digest(given, signature.encode()):
            return HookResponse(status=401)
        if self._sink is None:
            return HookResponse(status=503)
        try:
            events = self._events(parse_hook_body(request.body))
        except ValueError:
            return HookResponse(status=400)
        # All messages begin at once: a message of the next call must not come between two of this call.
        async with concurrently(self._sink) as hear:
            for event in events:
                if heard := parse_alone(self._parse_event, event):
                    await hear(heard)
        return HookResponse()

    @property
    @abstractmethod
    def _access_token(self) -> str:
        """Return the token for calls of the platform."""

    @abstractmethod
    async def _check_access(self) -> None:
        """Make a call that needs the token."""

    @abstractmethod
    def _signature(self, body: bytes) -> tuple[str, str]:
        """Return the name of the signature's header, in lower case, and the right signature of a body."""

    @abstractmethod
    def _events(self, body: Any) -> Iterable[Any]:
        """Return the events in the JSON of a call. Raises ``ValueError`` if it is no call of the platform."""

    @abstractmethod
    def _parse_event(self, event: Any) -> IncomingMessage | None:
        """Return the message of an event; None for other events."""

    def _lock_out(self, reason: str) -> RetryLater:
        """End ``run``, because the platform refused the token, and return the error of the call."""
        self._locked_out.set()
        return RetryLater(reason)
