"""Send single requests to an ASGI application and record its raw messages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope


@dataclass(slots=True)
class Exchange:
    """The messages that an application sent, and the chunks of the body that it did not read."""

    sent: list[Message] = field(default_factory=list[Message])
    unread: list[bytes] = field(default_factory=list[bytes])

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> Headers:
        return Headers(raw=self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def scope_of(
    method: str = "GET",
    path: str = "/",
    headers: Iterable[tuple[str, str]] = (),
    client: str = "192.0.2.1",
) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": (client, 40_000),
        "state": {"request_id": "test"},
    }


Ask = Callable[..., Coroutine[Any, Any, Exchange]]


@pytest.fixture
def ask() -> Ask:
    """``await ask(app, "POST", "/message", [("Host", "localhost")], body=[b"…"], client="192.0.2.1")``"""

    async def ask(app: ASGIApp, *request: Any, body: Iterable[bytes] = (), **more: Any) -> Exchange:
        exchange = Exchange(unread=list(body))

        async def receive() -> Message:
            if not exchange.unread:
                return {"type": "http.request"}
            return {"type": "http.request", "body": exchange.unread.pop(0), "more_body": bool(exchange.unread)}

        async def send(message: Message) -> None:
            exchange.sent.append(message)

        await app(scope_of(*request, **more), receive, send)
        return exchange

    return ask
