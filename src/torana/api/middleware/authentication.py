"""Authenticate every request except ``/health`` by the gateway token or a created token."""

from __future__ import annotations

import asyncio
import hmac
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torana.errors import RateLimited, Unauthorized
from torana.messages import Principal
from torana.people.tokens import PREFIX
from torana.workers.fair_slots import FairSlots

LOCAL = Principal(name="local")
OPERATOR = Principal(name="operator")

#: Returns the holder of a secret, or None for an unknown secret.
Authenticate = Callable[[str], Awaitable[Principal | None]]

SIGN_IN_PATH = "/v1/sign-in"

_CHALLENGE = 'Bearer realm="torana"'

#: The maximum number of addresses whose failures are counted. The least recent one is forgotten first.
_ADDRESSES = 4096
_LONGEST_DELAY = 1.0

#: The maximum number of requests of one user that are processed at a time, and the seconds after which a
#: request that waits for something no longer counts.
_PROCESSED = 4
_PROCESSING = 1.0

#: The paths of messages, which have limits of their own and wait for the model.
_MESSAGES = frozenset({"/message", "/v1/messages"})


class Authentication:
    """Stores the principal of a request in ``request.state``, or answers 401.

    The gateway token is compared first, in constant time and without the database, so that it is valid even if
    the database fails. ``authenticate`` checks every other token. Without a gateway token, requests without a
    token have the principal ``local``. Only responses to invalid tokens are delayed, by at most a second; a
    valid token is never delayed by failures from the same address. During the delay, the connection is among
    the first that are closed for new connections. A browser that visits ``/`` gets the page that
    ``unauthorized_page`` makes. The credential of a sign-in is a one-time code, for which ``sign_in`` is
    called. A gateway without a token needs no sign-in.

    All tokens of a user have at most ``at_once`` open requests together, event streams included, so that one
    user cannot take all connections. Of these, four are processed at a time, each until its response begins or
    a second has passed, so that many requests of one user do not delay others. Messages are not counted here.
    Tokens with the scopes ``admin`` or ``impersonate`` have neither limit.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        authenticate: Authenticate,
        sign_in: Authenticate,
        unauthorized_page: Callable[[Request, Mapping[str, str]], Awaitable[ASGIApp]],
        at_once: int = 128,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._app = app
        self._token = token.encode() if token is not None else None
        self._authenticate = authenticate
        self._sign_in = sign_in
        self._unauthorized_page = unauthorized_page
        self._sleep = sleep
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._at_once = at_once
        #: The number of open requests by user, or by token without a user.
        self._open: Counter[str] = Counter()
        self._processed = FairSlots(total=sys.maxsize, per_user=_PROCESSED)
        #: The lookups of each secret, which come before the user is known.
        self._lookups = FairSlots(total=sys.maxsize, per_user=_PROCESSED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate a request before anything else of it is read."""
        request = Request(scope)
        try:
            request.state.principal = await self._principal(request)
        except Unauthorized as error:
            if not _is_visit(request):
                raise
            page = await self._unauthorized_page(request, error.headers)
            await page(scope, receive, send)
            return
        request.state.authenticated_at = time.monotonic()
        principal: Principal = request.state.principal
        if principal.token is None or not principal.scopes.isdisjoint(("admin", "impersonate")):
            await self._app(scope, receive, send)
            return
        holder = principal.token if principal.user is None else principal.owner
        with self._counted(holder):
            if request.method == "POST" and scope["path"] in _MESSAGES:
                await self._app(scope, receive, send)
            else:
                await self._process(holder, scope, receive, send)

    async def _process(self, holder: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request when it is the turn of its holder."""
        await self._processed.acquire(holder)
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._processed.release(holder)

        async def reply(message: Message) -> None:
            release()
            await send(message)

        timer = asyncio.get_running_loop().call_later(_PROCESSING, release)
        try:
            await self._app(scope, receive, reply)
        finally:
            timer.cancel()
            release()

    @contextmanager
    def _counted(self, holder: str) -> Generator[None]:
        """Count a request while it is open. Raises ``RateLimited`` above the limit."""
        if self._open[holder] >= self._at_once:
            raise RateLimited(
                f"{self._at_once} requests are open; end some of them, such as event streams.",
                headers={"Retry-After": "1"},
            )
        self._open[holder] += 1
        try:
            yield
        finally:
            self._open[holder] -= 1
            if not self._open[holder]:
                del self._open[holder]

    async def _principal(self, request: Request) -> Principal:
        sent, signs_in = credentials_of(request), _asks_to_sign_in(request)
        is_open = self._token is None and (signs_in or not any(map(_is_secret, sent)))
        if is_open or _asks_for_health(request):
            return LOCAL
        credential = sent[0] if len(sent) == 1 else b""
        principal = await (
            self._sign_in(credential.decode("latin-1")) if signs_in else self._holder(credential)
        )
        if principal is None:
            await self._slow_down(request)
            challenge = f'{_CHALLENGE}, error="invalid_token"' if credential else _CHALLENGE
            raise Unauthorized(headers={"WWW-Authenticate": challenge})
        return principal

    async def _holder(self, credential: bytes) -> Principal | None:
        if self._token is not None and hmac.compare_digest(credential, self._token):
            return OPERATOR
        secret = credential.decode("latin-1")
        async with self._lookups.slot(secret):
            return await self._authenticate(secret)

    async def _slow_down(self, request: Request) -> None:
        address = request.client.host if request.client else ""
        failures = self._failures.pop(address, 0) + 1
        self._failures[address] = min(failures, 32)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)
        if failures > 3:  # the first failures are not delayed
            request.state.is_slowed_down = True  # http11.Protocol reads it
            await self._sleep(min(_LONGEST_DELAY, 0.05 * 2 ** (failures - 4)))


def credentials_of(request: Request) -> list[bytes]:
    """Return the credential of each ``Authorization`` header of a request."""
    return [_credential(value) for value in request.headers.getlist("authorization")]


def _asks_to_sign_in(request: Request) -> bool:
    return request.scope["path"] == SIGN_IN_PATH and request.method in ("GET", "POST")


def _asks_for_health(request: Request) -> bool:
    return request.scope["path"] == "/health" and request.method in ("GET", "HEAD")


def _is_secret(credential: bytes) -> bool:
    """Return whether a credential has the form of a created token, complete or not."""
    return credential.startswith(PREFIX.encode())


def _is_visit(request: Request) -> bool:
    return request.scope["path"] == "/" and "text/html" in request.headers.get("accept", "")


def _credential(authorization: str) -> bytes:
    """Return the token of an ``Authorization`` header; empty for another scheme (RFC 6750)."""
    scheme, _, credential = authorization.partition(" ")
    # Header values are decoded as Latin-1, and this restores the bytes that were sent. Only spaces are
    # stripped, because other blanks may be single bytes of a longer character.
    return credential.strip(" ").encode("latin-1") if scheme.lower() == "bearer" else b""
