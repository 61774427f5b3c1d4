"""ngIRCd, a real server, with users in its channels."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest
from tests.parts import require
from tests.standins.proxy import FaultyProxy
from tests.standins.servers import free_port, serving
from tests.waiting import PATIENCE

from torana.connectors.platforms.irc import Irc
from torana.testing.connectors import Platform, Shown

ROOM = "#room"
PASSWORD = "open sesame"

CONFIG = """
[Global]
Name = irc.test
Info = test
Listen = 127.0.0.1
Ports = {port}
Password = {password}
MotdPhrase = hello
ServerUID = nobody
ServerGID = nogroup
[Limits]
MaxConnectionsIP = 0
MaxNickLength = 20
MaxPenaltyTime = 0
[Options]
DNS = no
Ident = no
PAM = no
IncludeDir = {directory}/none
[SSL]
{tls}
"""


class Person:
    """A plain client that stores every received line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[bytes] = []
        self._news = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, port: int) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._reading = asyncio.create_task(self._read(reader))
        self.write(f"PASS :{PASSWORD}", f"NICK {self.name}", f"USER {self.name[:9]} 0 * :{self.name}")
        await self.saw(" 422 ", " 376 ")

    def write(self, *lines: str, encoding: str = "utf-8") -> None:
        assert self._writer is not None
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode(encoding))

    async def saw(self, *signs: str, since: int = 0) -> bytes:
        """Wait for the first line that contains one of the texts, and return it."""

        def first() -> bytes | None:
            return next((one for one in self.lines[since:] for sign in signs if sign.encode() in one), None)

        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(first)
        return first() or b""

    async def is_up_to_date(self) -> None:
        """Wait until the server's output so far has arrived."""
        mark = uuid4().hex
        self.write(f"PING :{mark}")
        await self.saw(mark)

    def said(self, nick: str, target: str) -> list[bytes]:
        """Return the lines with text that a nick sent to a target."""
        heads = [line.partition(b" :") for line in self.lines if line.startswith(f":{nick}!".encode())]
        return [text for head, _, text in heads if head.lower().endswith(f" PRIVMSG {target}".lower().encode())]

    async def leave(self) -> None:
        """Send QUIT, and wait until the server has processed it."""
        assert self._reading is not None
        assert self._writer is not None
        self.write("QUIT :bye")
        async with asyncio.timeout(PATIENCE):
            await self._reading
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            async with self._news:
                self.lines.append(line.rstrip(b"\r\n"))
                self._news.notify_all()
            if line.startswith(b"PING"):
                self.write(f"PONG {line.split()[1].decode()}")


class IrcPlatform(Platform):
    """A server with a channel, in which a silent watcher is present."""

    concurrently = True
    connector = Irc
    room = ROOM
    tells_again = False
    has_bots = False
    has_lines = False
    has_files = False

    def __init__(self, directory: Path, *, tls_port: int | None = None) -> None:
        """With a port for TLS, the directory must contain ``certificate.pem`` and ``key.pem``."""
        self._directory = directory
        self.tls_port = tls_port
        self._password = PASSWORD
        self._people: dict[str, Person] = {}
        self._stack = AsyncExitStack()
        self.port = 0
        #: The proxy between the connector and the server.
        self.proxy: FaultyProxy

    async def __aenter__(self) -> Self:
        ngircd = require("ngircd", "ngircd")
        self.port = free_port()
        config = self._directory / "ngircd.conf"
        where = self._directory
        files = f"CertFile = {where}/certificate.pem\nKeyFile = {where}/key.pem"
        tls = f"Ports = {self.tls_port}\n{files}" if self.tls_port else ""
        config.write_text(CONFIG.format(port=self.port, password=PASSWORD, directory=where, tls=tls))
        await self._stack.enter_async_context(serving(ngircd, "-n", "-f", str(config), port=self.port))
        self.proxy = await self._stack.enter_async_context(FaultyProxy("127.0.0.1", self.port))
        self.watcher = await self.person("watcher")
        self.watcher.write(f"JOIN {ROOM}")
        await self.watcher.saw(" 366 ")
        await self.person("ana")
        return self

    async def __aexit__(self, *_: object) -> None:
        for person in self._people.values():
            await person.leave()
        await self._stack.aclose()

    def settings(self) -> Mapping[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.proxy.port,
            "tls": False,
            "nick": "torana",
            "password": self._password,
            "channels": [ROOM],
            "lines_per_second": 1000,
        }

    async def person(self, name: str) -> Person:
        if name not in self._people:
            person = Person(name)
            await person.connect(self.port)
            self._people[name] = person
        return self._people[name]

    async def say(
        self,
        text: str,
        *,
        sender: str = "ana",
        room: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        bot: bool = False,
        file: tuple[str, str, bytes] | None = None,
    ) -> str:
        del thread, bot, file
        person = await self.person(sender)
        if room is not None:
            person.write(f"JOIN {room}")
        if mention:
            text = f"torana: {text}"
        person.write(f"PRIVMSG {room or 'torana'} :{text}")
        return text

    async def repeat(self, message: str) -> None:
        pytest.skip("IRC tells everything once")

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """Every line is a message here, so a part may become several messages."""
        del thread
        person = self.watcher if room else await self.person(to)
        async with asyncio.timeout(PATIENCE):
            while True:
                await person.is_up_to_date()
                said = person.said("torana", room or person.name)
                if len(said) >= count:
                    return [Shown(id="", text=text.decode()) for text in said]

    async def cut(self) -> None:
        self.proxy.cut()
        await self.is_gone()

    async def is_gone(self, nick: str = "torana") -> None:
        """Wait until the server has removed the account: until then its nick is in use."""
        await self.watcher.saw(f":{nick}!~{nick}@127.0.0.1 QUIT")

    async def fail(self) -> None:
        self.proxy.cut_at_next()

    async def refuse_message(self) -> None:
        await self._people.pop("ana").leave()

    async def refuse_login(self) -> None:
        self._password = "wrong"
