"""Who asks: the gateway's token, or one that was made, in front of everything but ``/health``."""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from torana.errors import Unauthorized
from torana.messages import Principal
from torana.people.tokens import PREFIX

LOCAL = Principal(name="local")
OPERATOR = Principal(name="operator")

#: Looks up the holder of a secret; None where it is nobody's.
Authenticate = Callable[[str], Awaitable[Principal | None]]

_CHALLENGE = 'Bearer realm="torana"'

#: Addresses whose failures are counted, at most; the longest silent one is forgotten first.
_ADDRESSES = 4096
_LONGEST_DELAY = 1.0


class Authentication:
    """Lets a request through with its principal in ``request.state``, or answers 401.

    The gateway's own token is compared first, in constant time and without a database, so that an operator
    gets in whatever becomes of that; every other credential is ``authenticate``'s. Without a token of its own
    everyone is ``local``, but whoever sends one that was made is its holder, or is refused. Failures are
    slowed, by at most a second, in their own answer alone: a valid token is never slowed, whatever others at
    its address do. A person who visits ``/`` with a browser is shown the page that ``closed_door`` makes of
    the 401's headers.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        authenticate: Authenticate,
        closed_door: Callable[[Mapping[str, str]], ASGIApp],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._app = app
        self._token = token.encode() if token is not None else None
        self._authenticate = authenticate
        self._closed_door = closed_door
        self._sleep = sleep
        self._failures: OrderedDict[str, int] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide before anything else of the request is looked at."""
        request = Request(scope)
        app = self._app
        try:
            request.state.principal = await self._principal(request)
        except Unauthorized as error:
            if not _is_visit(request):
                raise
            app = self._closed_door(error.headers)
        await app(scope, receive, send)

    async def _principal(self, request: Request) -> Principal:
        sent = [_credential(value) for value in request.headers.getlist("authorization")]
        if _asks_for_health(request) or (self._token is None and not any(map(_is_secret, sent))):
            return LOCAL
        credential = sent[0] if len(sent) == 1 else b""
        principal = await self._holder(credential)
        if principal is None:
            await self._slow_down(request)
            challenge = f'{_CHALLENGE}, error="invalid_token"' if credential else _CHALLENGE
            raise Unauthorized(headers={"WWW-Authenticate": challenge})
        return principal

    async def _holder(self, credential: bytes) -> Principal | None:
        if self._token is not None and hmac.compare_digest(credential, self._token):
            return OPERATOR
        return await self._authenticate(credential.decode("latin-1"))

    async def _slow_down(self, request: Request) -> None:
        address = request.client.host if request.client else ""
        failures = self._failures.pop(address, 0) + 1
        self._failures[address] = min(failures, 32)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)
        if failures > 3:  # a mistyped token or two cost nothing
            await self._sleep(min(_LONGEST_DELAY, 0.05 * 2 ** (failures - 4)))


def _asks_for_health(request: Request) -> bool:
    return request.scope["path"] == "/health" and request.method in ("GET", "HEAD")


def _is_secret(credential: bytes) -> bool:
    """Whether a credential means to be a token that was made, whole or not."""
    return credential.startswith(PREFIX.encode())


def _is_visit(request: Request) -> bool:
    return request.scope["path"] == "/" and "text/html" in request.headers.get("accept", "")


def _credential(authorization: str) -> bytes:
    """The token of an ``Authorization`` header, none where it has another scheme (RFC 6750)."""
    scheme, _, credential = authorization.partition(" ")
    # Header values are Latin-1 on the wire: the same bytes back, whatever was sent. Only spaces are stripped,
    # because a byte of a character may look like another blank.
    return credential.strip(" ").encode("latin-1") if scheme.lower() == "bearer" else b""
