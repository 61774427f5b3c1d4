"""A faulty network between a connector and a real server."""

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

#: With this option, a closed socket sends RST instead of FIN.
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass
class _Trap:
    """A fault that occurs after a number of bytes in one direction."""

    fault: Fault
    left: int
    to_server: bool
    bit: int


class FaultyProxy:
    """A TCP proxy with faults.

    ::

        async with FaultyProxy("127.0.0.1", 6667) as proxy:
            ...  # connect to 127.0.0.1, proxy.port
            proxy.cut()

    ``stall``, ``trickle`` and ``corrupt`` apply to all present and future connections until ``heal``. ``spoil``
    causes a fault at one byte.
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
        #: The number of accepted connections, and of bytes from the server and to the server.
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
        """The port for connections."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._links)

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection; with ``refuse`` also new ones, until ``heal``."""
        self._refusing = refuse
        for writer in list(self._writers):
            _reset(writer)

    def cut_at_next(self) -> None:
        """Reset all connections at the client's next data, which the server does not receive."""
        self._cut_at_next = True

    def stall(self) -> None:
        """Hold all data back without an error, until ``heal``."""
        self._set("stalled")

    def trickle(self) -> None:
        """Pass each byte on separately."""
        self._set("trickling")

    def corrupt(self) -> None:
        """Flip the bits of the server's data."""
        self._set("corrupt")

    def spoil(self, fault: Fault, *, after: int, to_server: bool) -> None:
        """Cut, stall, or flip one bit of the next byte, after this number of bytes in one direction.

        The bytes of all connections are counted. The fault occurs once; ``heal`` cancels it.
        """
        self._trap = _Trap(fault, after, to_server, bit=after % 8)

    @property
    def is_waiting(self) -> bool:
        """Return whether the fault of ``spoil`` has not occurred yet."""
        return self._trap is not None

    def heal(self) -> None:
        """End all faults."""
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
        # Broken connections are expected here, and asyncio would print cancelled ones.
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
        """Return how many of these bytes pass before the fault: usually all."""
        trap = self._trap
        if trap is None or trap.to_server != to_server:
            return count
        before = min(trap.left, count)
        trap.left -= before
        return before

    def _spring(self, data: bytes) -> bytes:
        """Cause the fault; return the bytes that still pass."""
        trap, self._trap = self._trap, None
        match trap:
            case None:  # it was cancelled
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
