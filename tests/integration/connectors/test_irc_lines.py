"""The IRC connector against a server that sends malformed lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

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

    async def run(self) -> AsyncGenerator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
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


words = st.sampled_from(WORDS) | st.text(
    st.characters(blacklist_characters="\r\n\0", blacklist_categories=["Cs"]), max_size=20
)
lines = st.builds(
    lambda tags, source, command, params, text: f"{tags}{source}{command} {' '.join(params)}{text}",
    st.sampled_from(["", "@ ", "@a;b=\\\\;account=;msgid= ", "@account=\\: "]),
    st.sampled_from(["", ": ", ":ana ", ":ana!a@h ", ":! ", ":server "]),
    st.sampled_from(COMMANDS),
    st.lists(words, max_size=4),
    st.just("") | words.map(" :{}".format),
).map(str.encode) | st.binary(max_size=50).map(lambda line: line.translate(None, b"\r\n\0"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(lines, max_size=30))
async def test_malformed_lines_do_not_end_the_connection(sent: list[bytes]) -> None:
    async for server in Server().run():
        connector = Irc(IrcSettings(host="127.0.0.1", port=server.port, tls=False))
        line = Line(connector)
        run = asyncio.create_task(connector.run(line))
        async with asyncio.timeout(PATIENCE):
            await line.is_ready.wait()

        await server.send(*sent, b":ana!a@h PRIVMSG torana :the end")
        while (await line.next()).text != "the end":
            pass

        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
