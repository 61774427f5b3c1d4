"""Prosody, a real server with a service for rooms, and users in them."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self
from uuid import uuid4
from xml.etree import ElementTree as ET
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from tests.parts import require
from tests.standins.proxy import FaultyProxy
from tests.standins.servers import free_port, serving
from tests.waiting import PATIENCE

from torana.connectors.platforms.xmpp import Xmpp
from torana.testing.connectors import Platform, Shown

HOST = "localhost"
ROOM = "room@rooms.localhost"
#: A room that hides the members' addresses.
MASKED = "masked@masked.localhost"
ACCOUNTS = ("torana", "ana", "bob", "watcher")
PASSWORD = "open sesame"

CONFIG = """
run_as_root = true
pidfile = "{directory}/pid"
data_path = "{directory}"
log = {{ {{ levels = {{ "warn", "error" }}, to = "console" }} }}
interfaces = {{ "127.0.0.1" }}
c2s_ports = {{ {port} }}
c2s_direct_tls_ports = {{ {tls_port} }}
s2s_ports = {{ }}
modules_enabled = {{
  "roster", "saslauth", "disco", "carbons", "smacks", "ping", "offline", "blocklist", "presence",
  "message", "iq", {modules}
}}
modules_disabled = {{ "s2s" }}
authentication = "internal_plain"
allow_unencrypted_plain_auth = true
c2s_require_encryption = false
limits = {{ }}
storage = "internal"
{tls}
VirtualHost "{host}"
Component "rooms.{host}" "muc"
  muc_room_locking = false
  muc_room_default_public_jids = true
  modules_enabled = {{ {room_modules} }}
Component "masked.{host}" "muc"
  muc_room_locking = false
"""

CLIENT = "{jabber:client}"


class Person:
    """A plain client that stores every received stanza."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stanzas: list[ET.Element] = []
        self._news = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._parser = _Parser()

    async def connect(self, port: int, resource: str = "here") -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._reading = asyncio.create_task(self._read(self._reader))
        self._open()
        await self.got(lambda one: one.tag.endswith("}features"))
        secret = b64encode(f"\0{self.name}\0{PASSWORD}".encode()).decode()
        self.write(f"<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>{secret}</auth>")
        await self.got(lambda one: one.tag.endswith("}success"))
        self._open()
        await self.got(lambda one: one.find("{urn:ietf:params:xml:ns:xmpp-bind}bind") is not None)
        device = f"<resource>{resource}</resource>"
        bind = f"<bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'>{device}</bind>"
        await self.asks(f"<iq type='set' id='bind'>{bind}</iq>", "bind")
        self.write("<presence/>")
        await self.is_up_to_date()

    def write(self, text: str) -> None:
        assert self._writer is not None
        self._writer.write(text.encode())

    def says(self, to: str, text: str, *more: str, kind: str = "chat", id: str | None = None) -> str:  # noqa: A002
        name = id or uuid4().hex
        body = f"<body>{escape(text)}</body>"
        self.write(f"<message to={quoteattr(to)} type='{kind}' id='{name}'>{body}{''.join(more)}</message>")
        return name

    async def enters(self, room: str, nick: str | None = None) -> None:
        there = f"{room}/{nick or self.name}"
        self.write(f"<presence to='{there}'><x xmlns='http://jabber.org/protocol/muc'/></presence>")
        await self.got(lambda one: one.tag == f"{CLIENT}presence" and one.get("from") == there)

    async def got(self, wanted: Callable[[ET.Element], bool]) -> ET.Element:
        """Wait for the first received stanza that matches, and return it."""

        def first() -> ET.Element | None:
            return next((one for one in self.stanzas if wanted(one)), None)

        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: first() is not None)
        found = first()
        assert found is not None
        return found

    async def asks(self, iq: str, name: str) -> ET.Element:
        self.write(iq)
        return await self.got(lambda one: one.tag == f"{CLIENT}iq" and one.get("id") == name)

    async def is_up_to_date(self) -> None:
        """Wait until the server's output so far has arrived."""
        name = uuid4().hex
        await self.asks(f"<iq type='get' id='{name}' to='{HOST}'><ping xmlns='urn:xmpp:ping'/></iq>", name)

    def said(self, sender: str) -> list[tuple[str, str]]:
        """Return the ids and texts of a sender's messages, with corrections applied."""
        said: dict[str, str] = {}
        for one in self.stanzas:
            body = one.findtext(f"{CLIENT}body")
            if one.tag != f"{CLIENT}message" or not one.get("from", "").startswith(sender) or body is None:
                continue
            replaced = one.find("{urn:xmpp:message-correct:0}replace")
            said[(one if replaced is None else replaced).get("id", "")] = body
        return list(said.items())

    async def leave(self) -> None:
        assert self._writer is not None
        assert self._reading is not None
        self.write("</stream:stream>")
        async with asyncio.timeout(PATIENCE):
            await self._reading
        self._writer.close()

    def _open(self) -> None:
        self.stanzas.clear()
        self._parser = _Parser()
        names = "xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams'"
        self.write(f"<stream:stream to='{HOST}' version='1.0' {names}>")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            async with self._news:
                self.stanzas.extend(self._parser.feed(data))
                self._news.notify_all()


class _Parser:
    """Splits a stream into its stanzas."""

    def __init__(self) -> None:
        self._depth = 0
        self._parser = expat.ParserCreate(namespace_separator="}")
        self._parser.buffer_text = True
        self._builder = ET.TreeBuilder()
        self._done: list[ET.Element] = []
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text

    def feed(self, data: bytes) -> list[ET.Element]:
        self._parser.Parse(data)
        done, self._done = self._done, []
        return done

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > 1:
            self._builder.start(f"{{{name}", attributes)

    def _text(self, text: str) -> None:
        if self._depth > 1:
            self._builder.data(text)

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._depth:
            self._builder.end(f"{{{name}")
        if self._depth == 1:
            self._done.append(self._builder.close())
            self._builder = ET.TreeBuilder()


class XmppPlatform(Platform):
    """A server with two rooms, in which a silent watcher is present."""

    concurrently = True
    connector = Xmpp
    link = f"xmpp:torana@{HOST}"
    room = ROOM
    has_bots = False
    has_files = False

    def __init__(self, directory: Path, *, certified: bool = False, archives: bool = False) -> None:
        """With ``certified``, the directory must contain ``certificate.pem`` and ``key.pem``.

        With ``archives`` the server stores messages (XEP-0313) and assigns ids (XEP-0359).
        """
        self._directory = directory
        self._certified = certified
        self._archives = archives
        self._password = PASSWORD
        self._people: dict[str, Person] = {}
        self._stack = AsyncExitStack()
        self.port = self.tls_port = 0
        #: The proxy between the connector and the server.
        self.proxy: FaultyProxy

    async def __aenter__(self) -> Self:
        prosody = require("prosody", "prosody")
        self.port, self.tls_port = free_port(), free_port()
        accounts = self._directory / HOST / "accounts"
        accounts.mkdir(parents=True)
        for name in ACCOUNTS:
            (accounts / f"{name}.dat").write_text(f'return {{ ["password"] = "{PASSWORD}" }};')
        where = self._directory
        files = f'ssl = {{ certificate = "{where}/certificate.pem"; key = "{where}/key.pem" }}'
        config = where / "prosody.cfg.lua"
        config.write_text(
            CONFIG.format(
                directory=where,
                port=self.port,
                tls_port=self.tls_port if self._certified else "",
                modules=", ".join(['"tls"'] * self._certified + ['"mam"'] * self._archives),
                room_modules='"muc_mam"' if self._archives else "",
                host=HOST,
                tls=files if self._certified else "",
            )
        )
        command = (prosody, "--config", str(config), "-F")
        await self._stack.enter_async_context(serving(*command, port=self.port))
        self.proxy = await self._stack.enter_async_context(FaultyProxy("127.0.0.1", self.port))
        for name in ACCOUNTS[1:]:
            self._people[name] = Person(name)
            await self._people[name].connect(self.port)
        self.watcher = self._people["watcher"]
        await self.watcher.enters(ROOM)
        await self.watcher.enters(MASKED)
        return self

    async def __aexit__(self, *_: object) -> None:
        for person in self._people.values():
            await person.leave()
        await self._stack.aclose()

    def settings(self) -> Mapping[str, Any]:
        return {
            "jid": f"torana@{HOST}",
            "password": self._password,
            "host": "127.0.0.1",
            "port": self.proxy.port,
            "tls": "none",
            "join": [ROOM],
        }

    def person(self, name: str) -> Person:
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
        person = self.person(sender)
        if mention:
            text = f"torana: {text}"
        if room is None:
            self._last = (person, f"torana@{HOST}", text)
            return person.says(f"torana@{HOST}", text)
        await person.enters(room)
        return person.says(room, text, kind="groupchat")

    async def repeat(self, message: str) -> None:
        person, to, text = self._last
        person.says(to, text, id=message)

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        del thread
        person = self.watcher if room else self.person(to)
        async with asyncio.timeout(PATIENCE):
            while True:
                await person.is_up_to_date()
                said = person.said(f"{room}/torana" if room else f"torana@{HOST}")
                if len(said) >= count:
                    return [Shown(id=name, text=text) for name, text in said]

    async def cut(self) -> None:
        self.proxy.cut()

    async def fail(self) -> None:
        self.proxy.cut_at_next()

    async def refuse_message(self) -> None:
        """The recipient blocks the account."""
        block = f"<block xmlns='urn:xmpp:blocking'><item jid='torana@{HOST}'/></block>"
        await self.person("ana").asks(f"<iq type='set' id='block'>{block}</iq>", "block")

    async def refuse_login(self) -> None:
        self._password = "wrong"
