"""Servers that send interim responses (1xx) before, or instead of, a response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest

from torana.web.interim_responses import bound_interim_responses

_INTERIM = b"HTTP/1.1 102 \r\n\r\n"
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"

#: Sends the answer to a request.
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[httpx2, httpx], ids=["httpx2", "httpx"])
def library(request: pytest.FixtureRequest) -> Any:
    """A library for HTTP with the bound."""
    bound_interim_responses()
    bound_interim_responses()
    return request.param


@asynccontextmanager
async def _server(answer: Answer) -> AsyncGenerator[str]:
    """Yield the URL of a server that answers all requests of a connection."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
                await writer.drain()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await asyncio.wait([task for task in serving if task])  # the client has closed its connections


@pytest.mark.timeout(30)
async def test_request_fails_if_a_server_sends_nothing_but_interim_responses(library: Any) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(_INTERIM * 100)
            await writer.drain()

    async with _server(answer) as url, library.AsyncClient(trust_env=False, timeout=60) as client:
        with pytest.raises(library.RemoteProtocolError, match="interim responses"):
            await client.get(url)


async def test_a_few_interim_responses_before_each_response_are_skipped(library: Any) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(_INTERIM * 20 + _RESPONSE)

    async with _server(answer) as url, library.AsyncClient(trust_env=False, timeout=60) as client:
        for _ in range(3):  # on one connection
            assert (await client.get(url)).text == "fine"


@pytest.mark.timeout(30)
async def test_aiohttp_request_fails_if_a_server_sends_nothing_but_interim_responses() -> None:
    bound_interim_responses()
    bound_interim_responses()

    async def answer(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(_INTERIM * 100)
            await writer.drain()

    async with _server(answer) as url, aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientConnectionError, match="interim responses"):
            await client.get(url)


async def test_aiohttp_skips_a_few_interim_responses_before_each_response() -> None:
    bound_interim_responses()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(_INTERIM * 20 + _RESPONSE)

    async with _server(answer) as url, aiohttp.ClientSession() as client:
        for _ in range(3):  # on one connection
            async with client.get(url) as response:
                assert await response.text() == "fine"


async def test_many_small_chunks_are_read_with_pauses(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n")

    sleep, pauses = asyncio.sleep, list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async with _server(answer) as url, library.AsyncClient(trust_env=False, timeout=60) as client:
        monkeypatch.setattr(asyncio, "sleep", pause)
        assert len((await client.get(url)).content) == 20_000

    assert pauses.count(0.002) == 20_000 // 64
