"""Long responses of a user are written while few others of the same user are unread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx2
import pytest
from tests.integration.api.conftest import Start

from torana.app import App
from torana.testing import ScriptedModel

#: The number of unread long responses of a user.
UNREAD = 4
LONG = "\x01" * 30_000
#: The name for slots of requests to a gateway without a token.
CALLER = "local"

REQUESTS = {
    "turn": ("GET", "/v1/turns/{turn}"),
    "calls": ("GET", "/v1/turns/{turn}/calls"),
    "end of the events": ("GET", "/v1/turns/{turn}/events?after=1-2"),
    "cancel": ("POST", "/v1/turns/{turn}/cancel"),
    "messages": ("GET", "/v1/sessions/{session}/messages"),
    "export": ("GET", "/v1/sessions/{session}/export"),
    "approvals": ("GET", "/v1/approvals"),
    "memories": ("GET", "/v1/users/ana/memories"),
    "repeated message": ("POST", "/message"),
    "repeated message without waiting": ("POST", "/message"),
}


async def fill(client: httpx2.AsyncClient) -> dict[str, str]:
    """Send a message with a long reply, and return the ids of its turn and session."""
    said = await client.post("/message", json=MESSAGE, headers=KEY)
    assert said.json()["reply"] == LONG
    (turn,) = (await client.get("/v1/turns")).json()["items"]
    return {"turn": turn["id"], "session": turn["sessionId"]}


MESSAGE = {"content": "hi", "channelId": "c"}
KEY = {"Idempotency-Key": "k"}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_long_response_waits_for_a_slot_of_its_user(start: Start, kind: str) -> None:
    app, client = await start(ScriptedModel(LONG, "short"))
    method, path = REQUESTS[kind]
    path = path.format_map(await fill(client))
    more: dict[str, Any] = {}
    if path == "/message":
        asynchronous = {"Prefer": "respond-async"} if "without" in kind else {}
        more = {"json": MESSAGE, "headers": KEY | asynchronous}

    async with AsyncExitStack() as unread:
        for _ in range(UNREAD):
            await unread.enter_async_context(app.services.long_responses.slot(CALLER))
        waiting = asyncio.create_task(client.request(method, path, **more))
        short = await client.post("/message", json={"content": "hi", "channelId": "d"})
        for _ in range(20):
            await client.get("/v1/turns")
        assert (short.json()["reply"], waiting.done()) == ("short", False)

    assert (await waiting).status_code == (202 if "without" in kind else 200)


async def test_slot_is_held_until_the_client_has_read_the_response(start: Start) -> None:
    app, client = await start(ScriptedModel(LONG))
    path = f"/v1/turns/{(await fill(client))['turn']}"
    read = asyncio.Event()
    begun = asyncio.Semaphore(0)
    clients = [asyncio.create_task(get(app, path, begun, read.wait)) for _ in range(UNREAD + 1)]
    for _ in range(UNREAD):
        await begun.acquire()
    for _ in range(20):
        await client.get("/v1/turns")
    assert begun.locked()

    read.set()

    async with asyncio.timeout(20):
        await begun.acquire()
        await asyncio.gather(*clients)


async def test_slot_of_a_failed_request_is_free_again(start: Start) -> None:
    app, client = await start(ScriptedModel(LONG))
    await fill(client)
    for _ in range(UNREAD + 1):
        assert (await client.get("/v1/turns/turn_missing/calls")).status_code == 404

    async with asyncio.timeout(20), app.services.long_responses.slot(CALLER):
        pass


async def get(
    app: App, path: str, begun: asyncio.Semaphore, until_read: Callable[[], Awaitable[object]]
) -> None:
    """Request a path, and read the body after ``until_read``."""

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            begun.release()
            await until_read()

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 18789),
        "state": {},
    }
    with suppress(asyncio.CancelledError):
        await app.asgi(scope, receive, send)
