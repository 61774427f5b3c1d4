"""A hostile MCP server over HTTP: the gateway stays healthy and reports the problem."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from email.message import Message
from http import cookiejar
from typing import Any

import pytest
from tests.integration.mcp.conftest import Ask, Start, until
from tests.standins.hostile_mcp import TOOLS, Hostile, serving_http

from torana.api.schemas.mcp import McpDetailsBody
from torana.tools.mcp.servers import McpServers
from torana.tools.mcp.throttle import Throttle


@pytest.fixture
def server() -> Hostile:
    return Hostile()


@pytest.fixture
def address(server: Hostile) -> Generator[str]:
    with serving_http(server) as url:
        yield url


@pytest.fixture
def events(server: Hostile) -> Generator[str]:
    with serving_http(server, events=True) as url:
        yield url


def bad(url: str, **settings: Any) -> dict[str, Any]:
    return {"url": url, "allow": list(TOOLS), **settings}


def status(servers: McpServers) -> dict[str, Any]:
    (supervisor,) = servers.supervisors.values()
    return McpDetailsBody.from_supervisor(supervisor).model_dump(mode="json")


async def test_oversized_result_is_refused_and_the_connection_stays(
    start: Start, ask: Ask, address: str
) -> None:
    servers = await start(bad=bad(address))

    assert "the response has more than 2 MiB" in await ask(servers, ("bad_big", {}))
    assert "well" in await ask(servers, ("bad_echo", {"text": "well"}))
    assert status(servers)["connections"] == 1


async def test_oversized_event_is_refused(start: Start, ask: Ask, events: str) -> None:
    servers = await start(bad=bad(events))

    assert "The outcome is unknown" in await ask(servers, ("bad_big", {}))
    assert "well" in await ask(servers, ("bad_echo", {"text": "well"}))


async def test_result_of_many_values_is_refused_before_it_is_validated(
    start: Start, ask: Ask, address: str, events: str
) -> None:
    servers = await start(bad=bad(address), stream=bad(events))

    assert "more than 20,000 JSON values" in await ask(servers, ("bad_values", {}))
    assert "more than 20,000 JSON values" in await ask(servers, ("stream_values", {}))
    assert "well" in await ask(servers, ("stream_echo", {"text": "well"}))


async def test_half_a_surrogate_pair_in_a_result_is_replaced(
    start: Start, ask: Ask, address: str, events: str
) -> None:
    servers = await start(bad=bad(address), stream=bad(events))

    assert "half ?, whole \U0001f600, backslash \\ud83d" in await ask(servers, ("bad_surrogate", {}))
    assert "half ?, whole \U0001f600, backslash \\ud83d" in await ask(servers, ("stream_surrogate", {}))


async def test_endless_header_parameters_are_not_parsed(
    start: Start, ask: Ask, server: Hostile, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard library's parser takes seconds for them."""
    parsed: list[str] = []

    def charset(message: Message, failobj: None = None) -> None:
        parsed.append(message["content-type"])

    monkeypatch.setattr(Message, "get_content_charset", charset)
    server.trick = "parameters"

    servers = await start(bad=bad(events))

    assert "well" in await ask(servers, ("bad_echo", {"text": "well"}))
    assert set(parsed) == {"text/event-stream"}


async def test_cookies_are_neither_parsed_nor_sent_back(
    start: Start, ask: Ask, server: Hostile, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million of them stopped each request, and with it the gateway, for seven seconds."""
    parsed: list[object] = []
    monkeypatch.setattr(cookiejar, "parse_ns_headers", parsed.append)
    monkeypatch.setattr(cookiejar, "split_header_words", parsed.append)
    server.trick = "parameters"

    servers = await start(bad=bad(events))

    assert "well" in await ask(servers, ("bad_echo", {"text": "well"}))
    assert parsed == []
    assert set(server.cookies) == {None}


async def test_progress_does_not_extend_the_timeout(start: Start, ask: Ask, events: str) -> None:
    servers = await start(bad=bad(events, timeout=3))

    assert "did not answer within 3 s" in await ask(servers, ("bad_progress", {}))
    assert "well" in await ask(servers, ("bad_echo", {"text": "well"}))


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_each_event_counts_whatever_ends_its_lines(
    start: Start, ask: Ask, server: Hostile, events: str, monkeypatch: pytest.MonkeyPatch, line_end: bytes
) -> None:
    counted: list[int] = []
    spend = Throttle.spend

    async def count(throttle: Throttle, size: int, *, messages: int = 1, values: int = 0) -> None:
        counted.append(messages)
        await spend(throttle, size, messages=messages, values=values)

    server.line_end = line_end
    servers = await start(bad=bad(events))
    monkeypatch.setattr(Throttle, "spend", count)

    assert "after the notices" in await ask(servers, ("bad_notices", {}))
    assert sum(counted) >= 300


async def test_streams_that_end_at_once_are_opened_at_a_limited_rate(
    start: Start, server: Hostile, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    spend = Throttle.spend

    async def count(throttle: Throttle, size: int, *, messages: int = 1, values: int = 0) -> None:
        opened.extend([messages] if messages >= 50 else ())
        await spend(throttle, size, messages=messages, values=values)

    monkeypatch.setattr(Throttle, "spend", count)
    server.trick = "ended streams"

    await start(bad=bad(address))
    await until(lambda: len(server.streams) >= 20)

    assert len(opened) >= 20


async def test_stream_of_a_call_is_not_opened_again_after_its_end(
    start: Start, ask: Ask, server: Hostile, address: str
) -> None:
    server.trick = "ended streams"
    servers = await start(bad=bad(address, timeout=1))

    assert "did not answer within 1 s" in await ask(servers, ("bad_echo", {"text": "well"}))
    await until(lambda: not any("_run_request_post" in task.get_name() for task in asyncio.all_tasks()))

    # Otherwise the library opens it some hundred times, until its recursion ends.
    assert 1 < server.streams.count("call") < 50
    assert status(servers)["state"] == "active"


@pytest.mark.parametrize(
    ("trick", "reason"),
    [
        ("redirect", "Redirect to http://127.0.0.2:1/mcp not followed"),
        ("locked", "Server returned an error response"),
        ("bomb", "compressed"),
    ],
)
async def test_unavailable_server_is_reported_with_a_reason(
    start: Start, server: Hostile, address: str, trick: str, reason: str
) -> None:
    server.trick = trick

    servers = await start(bad=bad(address, headers={"Authorization": "Bearer wrong-one"}))

    assert status(servers)["state"] == "backing_off"
    assert reason in status(servers)["reason"]
    assert "wrong-one" not in str(status(servers))


async def test_headers_are_sent_with_every_request(
    start: Start, ask: Ask, server: Hostile, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "right")
    server.trick = "locked"

    servers = await start(bad=bad(address, headers={"Authorization": "Bearer ${KEY}"}))

    assert "well" in await ask(servers, ("bad_echo", {"text": "well"}))
