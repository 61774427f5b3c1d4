"""The IRC connector against a server that sends malformed lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torana.connectors.platforms.irc.connector import Irc, IrcSettings
from torana.testing.connectors import PATIENCE, Line

#: Commands that a well-behaved server may send at any time; others end the connection, or rename the account.
COMMANDS = [
    "PRIVMSG",
    "PING",
    "PONG",
    "JOIN",
    "PART",
    "KICK",
    "INVITE",
    "NICK",
    "CAP",
    "TAGMSG",
    "263",
    "401",
    "437",
]
WORDS = [
    "",
    "torana",
    "#room",
    "ls",
    "*",
    "\x01",
    "\x01ACTION",
    "\x0399,99",
    "\u202e",
    "é",
    "x" * 300,
    "@",
    ":",
]


class Server:
    """A server that welcomes the account."""

    def __init__(self) -> None:
        self.port = 0
        self._client: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            (await self._client).close()

    async def send(self, *lines: bytes) -> None:
        writer = await self._client
        writer.write(b"".join(line + b"\r\n" for line in lines))
        await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b":server 001 torana :Welcome\r\n:server 376 torana :End\r\n")
        self._client.set_result(writer)
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass


words = st.sampled_from(WORDS) | st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=20)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Return a line of the protocol with any tags, source and parameters."""
    tags = draw(st.sampled_from(["", "@ ", "@a;b=\\;account=;msgid= ", "@account=\\: "]))
    source = draw(st.sampled_from(["", ": ", ":ana ", ":ana!a@h ", ":! ", ":server "]))
    text = draw(st.just("") | words.map(" :{}".format))
    params = " ".join(draw(st.lists(words, max_size=4)))
    return f"{tags}{source}{draw(st.sampled_from(COMMANDS))} {params}{text}".encode()


garbage = st.binary(max_size=50).map(lambda line: line.translate(None, b"\r\n\0"))


async def next_text(line: Line, run: asyncio.Task[None]) -> str:
    heard = asyncio.create_task(line.next())
    await asyncio.wait({heard, run}, return_when=asyncio.FIRST_COMPLETED)
    if run.done():
        heard.cancel()
        run.result()
    return (await heard).text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(lines() | garbage, max_size=30))
async def test_malformed_lines_do_not_end_the_connection(sent: list[bytes]) -> None:
    async with Server().running() as server:
        connector = Irc(IrcSettings(host="127.0.0.1", port=server.port, tls=False))
        line = Line(connector)
        run = asyncio.create_task(connector.run(line))
        async with asyncio.timeout(PATIENCE):
            await line.is_ready.wait()

        await server.send(*sent, b":ana!a@h PRIVMSG torana :the end")
        while await next_text(line, run) != "the end":
            pass

        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
