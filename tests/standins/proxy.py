"""A network that fails, between a connector and a real server."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Self

Mode = Literal["open", "stalled", "trickling", "corrupt"]
Fault = Literal["cut", "stall", "flip"]

#: Closed with this, a socket sends RST and not FIN.
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass
class _Trap:
    """What goes wrong once so many more bytes have gone one way."""

    fault: Fault
    left: int
    to_server: bool
    bit: int


class FaultyProxy:
    """Passes TCP connections on to a server, well or badly.

    ::

        async with FaultyProxy("127.0.0.1", 6667) as proxy:
            ...  # connect to 127.0.0.1, proxy.port
            proxy.cut()

    ``stall``, ``trickle`` and ``corrupt`` hold until ``heal``, for connections there are and those to come.
    ``spoil`` does something at one certain byte.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._mode: Mode = "open"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._cut_at_next = False
        self._refusing = False
        self._trap: _Trap | None = None
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        #: Connections accepted so far, and bytes that came from the server and that went to it.
        self.accepted = 0
        self.passed = [0, 0]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self._flowing.set()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    @property
    def port(self) -> int:
        """Where to connect to."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def open(self) -> int:
        """Connections that stand at present."""
        return len(self._links)

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection; with ``refuse`` new ones too, until ``heal``."""
        self._refusing = refuse
        for writer in list(self._writers):
            _reset(writer)

    def cut_at_next(self) -> None:
        """Reset everything as soon as the client says something more, which the server does not hear."""
        self._cut_at_next = True

    def stall(self) -> None:
        """Nothing goes through any more, and nobody is told; what was said arrives after ``heal``."""
        self._set("stalled")

    def trickle(self) -> None:
        """Every byte comes alone."""
        self._set("trickling")

    def corrupt(self) -> None:
        """What the server says arrives with its bits turned."""
        self._set("corrupt")

    def spoil(self, fault: Fault, *, after: int, to_server: bool) -> None:
        """Cut, stall, or flip one bit of the next byte, when so many bytes more have gone one way.

        They are counted over all connections. It happens once; ``heal`` takes back what has not happened.
        """
        self._trap = _Trap(fault, after, to_server, bit=after % 8)

    @property
    def is_waiting(self) -> bool:
        """Whether that which ``spoil`` announced has not happened yet."""
        return self._trap is not None

    def heal(self) -> None:
        """All is well again."""
        self._refusing = self._cut_at_next = False
        self._trap = None
        self._set("open")

    def _set(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "stalled":
            self._flowing.clear()
        else:
            self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        self.accepted += 1
        # A connection that breaks is what this is for, and a cancelled one would be printed by asyncio.
        with suppress(OSError, asyncio.CancelledError):
            async with self._held(writer):
                if not self._refusing:
                    await self._join(reader, writer)
        self._links.discard(link)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(*self._target)
        async with self._held(inner_writer):
            pumps = (
                asyncio.create_task(self._pump(reader, inner_writer, to_server=True)),
                asyncio.create_task(self._pump(inner_reader, writer, to_server=False)),
            )
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    @asynccontextmanager
    async def _held(self, writer: asyncio.StreamWriter) -> AsyncGenerator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        while data := await reader.read(65_536):
            await self._flowing.wait()
            if self._cut_at_next and to_server:
                self._cut_at_next = False
                self.cut()
                return
            if self._mode == "corrupt" and not to_server:
                data = bytes(byte ^ 0x55 for byte in data)
            before = self._before_the_trap(len(data), to_server=to_server)
            await self._pass(data[:before], writer)
            if rest := data[before:]:
                rest = self._spring(rest)
                await self._flowing.wait()
                await self._pass(rest, writer)
            self.passed[to_server] += len(data)

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        step = 1 if self._mode == "trickling" else max(1, len(data))
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
            await writer.drain()
            await asyncio.sleep(0)

    def _before_the_trap(self, count: int, *, to_server: bool) -> int:
        """How many of so many bytes go through before something happens: mostly all."""
        trap = self._trap
        if trap is None or trap.to_server != to_server:
            return count
        before = min(trap.left, count)
        trap.left -= before
        return before

    def _spring(self, data: bytes) -> bytes:
        """Do what was announced; returns the bytes that still go through."""
        trap, self._trap = self._trap, None
        match trap:
            case None:  # it was taken back
                return data
            case _Trap(fault="cut"):
                self.cut()
                return b""
            case _Trap(fault="stall"):
                self.stall()
                return data
            case _Trap(bit=bit):
                return bytes([data[0] ^ 1 << bit]) + data[1:]


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
