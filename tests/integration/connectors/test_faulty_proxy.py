"""The faulty proxy injects the faults that other tests rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from tests.standins.proxy import FaultyProxy


@pytest.fixture
async def proxy() -> AsyncGenerator[FaultyProxy]:
    """A proxy in front of an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, FaultyProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def asks(self, text: bytes) -> bytes:
        self.writer.write(text)
        async with asyncio.timeout(10):
            return await self.reader.readexactly(len(text))


@pytest.fixture
async def client(proxy: FaultyProxy) -> AsyncGenerator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield Client(reader, writer)
    writer.transport.abort()


async def test_proxy_forwards_data(client: Client) -> None:
    assert await client.asks(b"hello" * 100) == b"hello" * 100


async def test_cut_resets_connection_and_accepts_new_one(proxy: FaultyProxy, client: Client) -> None:
    assert await client.asks(b"hello") == b"hello"
    proxy.cut()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.asks(b"again")
    again = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    assert await again.asks(b"hello") == b"hello"
    assert proxy.accepted == 2
    again.writer.transport.abort()


async def test_refusing_proxy_resets_connections_until_healed(proxy: FaultyProxy, client: Client) -> None:
    assert await client.asks(b"hello") == b"hello"
    proxy.cut(refuse=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await Client(reader, writer).asks(b"hello")
    proxy.heal()
    writer.transport.abort()
    again = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    assert await again.asks(b"hello") == b"hello"
    again.writer.transport.abort()


async def test_cut_at_next_data_resets_connection(proxy: FaultyProxy, client: Client) -> None:
    assert await client.asks(b"hello") == b"hello"
    proxy.cut_at_next()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.asks(b"again")


async def test_stalled_proxy_holds_data_until_healed(proxy: FaultyProxy, client: Client) -> None:
    assert await client.asks(b"hello") == b"hello"
    proxy.stall()
    client.writer.write(b"late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.reader.readexactly(1)
    proxy.heal()
    assert await client.reader.readexactly(4) == b"late"


async def test_fault_at_byte_leaves_earlier_bytes_intact(proxy: FaultyProxy, client: Client) -> None:
    proxy.spoil("flip", after=7, to_server=True)
    assert await client.asks(b"hello") == b"hello"
    assert proxy.is_waiting
    assert await client.asks(b"hello") == bytes([*b"he", ord("l") ^ 1 << 7, *b"lo"])
    assert not proxy.is_waiting
    proxy.spoil("stall", after=2, to_server=False)
    client.writer.write(b"hello")
    assert await client.reader.readexactly(2) == b"he"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.reader.readexactly(1)
    proxy.heal()
    assert await client.reader.readexactly(3) == b"llo"
    proxy.spoil("cut", after=0, to_server=True)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.asks(b"hello")


async def test_trickle_keeps_data_and_corrupt_inverts_bits(proxy: FaultyProxy, client: Client) -> None:
    proxy.trickle()
    assert await client.asks(b"hello") == b"hello"
    proxy.corrupt()
    said = await client.asks(b"hello")
    assert bytes(byte ^ 0x55 for byte in said) == b"hello"


async def test_closed_proxy_leaves_no_tasks() -> None:
    before = asyncio.all_tasks()
    async with FaultyProxy("127.0.0.1", 1) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await asyncio.sleep(0)
    writer.transport.abort()
    assert asyncio.all_tasks() == before
