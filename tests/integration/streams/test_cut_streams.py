"""Event streams over a real socket: cut at every event, read slowly, or not read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from pydantic_ai.messages import ToolCallPart

from torana.testing import ScriptedModel

if TYPE_CHECKING:
    from tests.integration.streams.conftest import Browser, Event, Proxy, Served

Serve = Callable[..., Awaitable["Served"]]
Proxied = Callable[[str], Awaitable["Proxy"]]

HI = {"content": "1+1?", "channelId": "c"}
KEY = "idempotency-key"

#: The number of events of a turn before the gate, and in total.
BEFORE, ALL = 4, 8


def talkative(gate: asyncio.Event) -> ScriptedModel:
    """Return a model that sends text, calls a tool, waits for the gate, and sends more text."""
    call = ToolCallPart("calculate", {"expression": "1+1"})
    return ScriptedModel(["Let me see.", call], [gate, "It ", "is ", "2."])


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


@pytest.mark.parametrize("cut", range(1, ALL + 1))
async def test_cut_stream_resumes_where_it_ended(serve: Serve, proxied: Proxied, browser: Browser, cut: int):
    gate = asyncio.Event()
    _, url = await serve(talkative(gate))
    proxy = await proxied(url)
    proxy.cuts = [cut]
    if cut > BEFORE:
        gate.set()
    seen = await all_of(browser.send(proxy.url, HI, **{KEY: "k"}))
    assert len(seen) == cut
    gate.set()
    turn_id = seen[0].data["id"]
    seen += await all_of(browser.resume(proxy.url, seen, turn_id))
    assert seen == await all_of(browser.resume(url, [], turn_id))
    assert len(seen) == ALL
    plain = await browser.http.post(f"{url}/message", json=HI, headers={KEY: "k"})
    assert seen[-1].data == plain.json()
    assert browser.shown(seen) == plain.json()["reply"]


async def test_repeatedly_cut_stream_loses_and_repeats_nothing(
    serve: Serve, proxied: Proxied, browser: Browser
):
    gate = asyncio.Event()
    _, url = await serve(talkative(gate))
    proxy = await proxied(url)
    proxy.cuts = [1] * ALL
    seen = await all_of(browser.send(proxy.url, HI))
    turn_id = seen[0].data["id"]
    for number in range(2, ALL + 1):
        if number > BEFORE:
            gate.set()
        seen += await all_of(browser.resume(proxy.url, seen, turn_id))
        assert len(seen) == number
    assert seen == await all_of(browser.resume(url, [], turn_id))


async def test_cut_off_client_can_repeat_its_message(serve: Serve, proxied: Proxied, browser: Browser):
    gate = asyncio.Event()
    _, url = await serve(talkative(gate))
    proxy = await proxied(url)
    proxy.cuts = [3]
    first = await all_of(browser.send(proxy.url, HI, **{KEY: "k"}))
    gate.set()
    again = await all_of(browser.send(proxy.url, HI, **{KEY: "k"}))
    assert again[:3] == first
    assert len(again) == ALL


@pytest.mark.parametrize("cut", range(1, BEFORE + 1))
async def test_stream_resumes_after_a_restart(serve: Serve, proxied: Proxied, browser: Browser, cut: int):
    app, url = await serve(talkative(asyncio.Event()))
    proxy = await proxied(url)
    proxy.cuts = [cut]
    seen = await all_of(browser.send(proxy.url, HI, **{KEY: "k"}))
    turn_id = seen[0].data["id"]
    while len(await first(browser.resume(url, [], turn_id), BEFORE)) < BEFORE:
        pass
    await app.close()
    _, url = await serve(ScriptedModel(["It ", "is ", "2."]))
    seen += await all_of(browser.resume(url, seen, turn_id))
    resumed = seen[cut]
    assert (resumed.type, resumed.data["text"]) == ("turn.resumed", "Let me see.")
    plain = (await browser.http.post(f"{url}/message", json=HI, headers={KEY: "k"})).json()
    assert browser.shown(seen) == plain["reply"] == "Let me see.\n\nIt is 2."
    assert seen[-1].type == "turn.completed"
    assert seen[-1].data == plain


async def first(events: AsyncIterator[Event], count: int) -> list[Event]:
    """Return the first events."""
    found: list[Event] = []
    async for event in events:
        found.append(event)
        if len(found) == count:
            break
    return found


# --- slow readers


class Sluggish:
    """A reader on a socket with a small buffer."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect((host, int(port)))
        self._socket.setblocking(False)

    def send(self, channel: str) -> None:
        body = json.dumps({"content": "hi", "channelId": channel}).encode()
        head = "POST /message HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)

    async def read(self, size: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, size)

    def close(self) -> None:
        self._socket.close()


async def test_slow_readers_do_not_delay_turns(serve: Serve, browser: Browser):
    pieces = [f"{number:>10000}" for number in range(300)]
    _, url = await serve(ScriptedModel(pieces, pieces, "short"), max_response_bytes=4_000_000)
    readers = [Sluggish(url) for _ in range(2)]
    slow, _never = readers
    for channel, reader in zip("ab", readers, strict=True):
        reader.send(channel)
    received = b""
    while await count_answered(browser, url) < 2:
        received += await slow.read(1)
    assert (await browser.http.post(f"{url}/message", json={"content": "hi"})).json()["reply"] == "short"
    while data := await slow.read(65_536):
        received += data
    assert received.endswith(b"0\r\n\r\n")  # the stream is complete
    assert b"event: turn.completed" in received
    for reader in readers:
        reader.close()


async def count_answered(browser: Browser, url: str) -> int:
    """Return the number of sessions with an answer."""
    found = 0
    for session in (await browser.http.get(f"{url}/v1/sessions")).json()["items"]:
        said = (await browser.http.get(f"{url}/v1/sessions/{session['id']}/messages")).json()["items"]
        found += len(said) > 1
    return found
