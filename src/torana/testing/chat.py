"""A chat platform in memory, for tests that stay in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from torana.connectors.abreast import abreast
from torana.connectors.base import (
    Abilities,
    Attachment,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    Part,
    Place,
    Refused,
    Sender,
    TooLarge,
    TryLater,
    Unsure,
)
from torana.testing.connectors import PATIENCE, Platform, Shown


@dataclass
class _Message:
    id: str
    chat: str
    thread: str | None
    text: str
    key: str


@dataclass
class _Said:
    heard: Heard
    taken: asyncio.Event = field(default_factory=asyncio.Event)


class ChatSettings(ConnectorSettings):
    """What a chat needs: nothing."""


class ChatConnector(Connector[ChatSettings]):
    """The connector of a ``Chat``."""

    Settings = ChatSettings
    global_ids = True
    abilities: ClassVar[Abilities]
    #: The chat; each has a class of its own.
    chat: ClassVar[Chat]

    @property
    def credentials(self) -> str:
        """As ``Connector``."""
        return "chat"

    async def run(self, ears: Ears) -> None:
        """As ``Connector``."""
        self.chat.connect()
        ears.ready()
        async with abreast(ears) as hear:
            while True:
                said = await self.chat.next()
                ears.alive()
                await hear(said.heard, partial(self.chat.take, said))

    async def send(self, part: Part) -> str:
        """As ``Connector``."""
        return await self.chat.show(part)

    async def find(self, part: Part) -> str | None:
        """As ``Connector``."""
        return self.chat.id_of(part.key)

    async def typing(self, place: Place) -> None:
        """As ``Connector``."""
        self.chat.typing.append(place)


class Chat(Platform):
    """People, a room, and the account of a connector; nothing is lost by it, and its faults are ordered.

    ``calls`` are the parts that it was told to show, whatever came of them. ``faults`` are raised by the next
    ones, oldest first; where one is an ``Unsure`` with ``arrived``, the part is shown all the same.
    """

    room = "lobby"
    abreast = True

    def __init__(self, abilities: Abilities | None = None, **settings: Any) -> None:
        self._settings = settings
        able = abilities or Abilities(length=200, repeat="keyed", threads=True, edits=True, pace=10_000)
        self.connector = type("Chat", (ChatConnector,), {"abilities": able, "chat": self})
        self.calls: list[Part] = []
        self.faults: list[BaseException] = []
        self.typing: list[Place] = []
        #: What stands behind the id of each message that people say.
        self.id_suffix = ""
        #: While set, a call of the platform waits for it.
        self.gate: asyncio.Event | None = None
        self._refuses = False
        self._said: list[_Said] = []
        self._all: dict[str, _Said] = {}
        self._messages: list[_Message] = []
        self._changed = asyncio.Condition()
        self._connection = 0
        self._numbers = 0

    def settings(self) -> Mapping[str, Any]:
        """As ``Platform``."""
        return self._settings

    # What people and the test do.

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
        attachments: Sequence[Attachment] = (),
        said_at: datetime | None = None,
    ) -> str:
        """As ``Platform``; besides a file there may be any ``attachments``, and it may come late."""
        heard = Heard(
            id=self._number() + self.id_suffix,
            sender=Sender(id=sender, name=sender.title(), automatic=bot),
            place=Place(chat=room or f"with {sender}", thread=thread),
            text=text,
            direct=room is None,
            addressed=room is None or mention,
            attachments=(*attachments, *([] if file is None else [_attachment(*file)])),
            said_at=said_at,
        )
        self._all[heard.id] = said = _Said(heard)
        await self._tell(said)
        return heard.id

    async def repeat(self, message: str) -> None:
        """As ``Platform``."""
        await self._tell(_Said(self._all[message].heard))

    async def until_taken(self, message: str) -> None:
        """Wait until the connector has said that it took a message."""
        async with asyncio.timeout(PATIENCE):
            await self._all[message].taken.wait()

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """As ``Platform``."""

        def there() -> list[Shown]:
            chat = room or f"with {to}"
            return [
                Shown(id=message.id, text=message.text, thread=message.thread)
                for message in self._messages
                if (message.chat, message.thread) == (chat, thread)
            ]

        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(there()) >= count)
        return there()

    async def called(self, count: int) -> Sequence[Part]:
        """Wait until it was told to show so many parts."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= count)
        return self.calls

    async def cut(self) -> None:
        """As ``Platform``."""
        async with self._changed:
            self._connection += 1
            self._changed.notify_all()

    async def limit(self, seconds: float | None) -> None:
        """As ``Platform``."""
        self.faults.append(TryLater("too many", seconds=seconds))

    async def fail(self) -> None:
        """As ``Platform``."""
        self.faults.append(Unsure("a fault"))

    async def refuse_message(self) -> None:
        """As ``Platform``."""
        self.faults.append(Refused("no such chat"))

    async def refuse_login(self) -> None:
        """As ``Platform``."""
        self._refuses = True

    async def accept_login(self) -> None:
        """Take the account's credentials for right again."""
        self._refuses = False

    # What the connector does.

    def connect(self) -> None:
        """Begin a connection; what was not taken is told again."""
        if self._refuses:
            raise Refused("wrong password")
        self._connection += 1
        self._here = self._connection
        self._said = [said for said in self._all.values() if not said.taken.is_set()]

    async def next(self) -> _Said:
        """The next message said."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._said or self._connection != self._here)
        if self._connection != self._here:
            raise ConnectionError("the connection was cut")
        return self._said.pop(0)

    async def take(self, said: _Said) -> None:
        """Never tell a message again by itself."""
        self._all[said.heard.id].taken.set()

    async def show(self, part: Part) -> str:
        """Show a part, or raise the next fault."""
        self.calls.append(part)
        await self._notify()
        if self.gate is not None:
            await self.gate.wait()
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and not getattr(fault, "arrived", False):
            raise fault
        shown_as = self._kept(part)
        await self._notify()
        if fault is not None:
            raise fault
        return shown_as

    def id_of(self, key: str) -> str | None:
        """The message with that key."""
        return next((message.id for message in self._messages if message.key == key), None)

    def _kept(self, part: Part) -> str:
        abilities = self.connector.abilities
        if abilities.measure(part.text) > abilities.length:
            raise Refused("too long")
        known = self.id_of(part.key) if abilities.repeat == "keyed" else None
        if part.edits is not None:
            for message in self._messages:
                if message.id == part.edits:
                    message.text = part.text
                    return message.id
            raise Refused("no such message")
        if known is not None:
            return known
        place = part.place
        message = _Message(self._number(), place.chat, place.thread, part.text, part.key)
        self._messages.append(message)
        return message.id

    def forget(self, shown_as: str) -> None:
        """Delete a message, as people do."""
        self._messages = [message for message in self._messages if message.id != shown_as]

    async def _tell(self, said: _Said) -> None:
        self._said.append(said)
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _number(self) -> str:
        self._numbers += 1
        return str(self._numbers)


def _attachment(name: str, media_type: str, content: bytes) -> Attachment:
    async def fetch(limit: int) -> bytes:
        if len(content) > limit:
            raise TooLarge
        return content

    kind = "image" if media_type.startswith("image/") else "file"
    return Attachment(kind=kind, name=name, media_type=media_type, size=len(content), fetch=fetch)
