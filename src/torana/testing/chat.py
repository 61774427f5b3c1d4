"""A chat platform in memory, for tests inside the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, ClassVar

from torana.connectors.base import (
    Attachment,
    Capabilities,
    Connector,
    ConnectorSettings,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
    TooLarge,
)
from torana.connectors.transport.concurrency import concurrently
from torana.testing.connectors import PATIENCE, Platform, Shown


@dataclass
class _Message:
    id: str
    chat: str
    thread: str | None
    text: str
    key: str


@dataclass
class _SentMessage:
    heard: IncomingMessage
    taken: asyncio.Event = field(default_factory=asyncio.Event)


class ChatSettings(ConnectorSettings):
    """The settings of a chat: only the common ones."""


class ChatConnector(Connector[ChatSettings]):
    """The connector of a ``Chat``."""

    Settings = ChatSettings
    global_ids = True
    abilities: ClassVar[Capabilities]
    #: The chat; each chat has its own connector class.
    chat: ClassVar[Chat]

    @property
    def credentials(self) -> str:
        return "chat"

    async def run(self, sink: MessageSink) -> None:
        self.chat.connect()
        sink.ready()
        async with concurrently(sink) as hear:
            while True:
                said = await self.chat.next()
                sink.alive()
                await hear(said.heard, partial(self.chat.take, said))

    async def send(self, part: Part) -> str:
        return await self.chat.show(part)

    async def find(self, part: Part) -> str | None:
        return self.chat.screen.find(part.key)

    async def typing(self, place: Place) -> None:
        self.chat.typing.append(place)


class Chat(Platform):
    """A chat platform with users, a room and the account of a connector. It loses no message.

    ``calls`` are the parts that the connector sent, including failed ones. The next calls raise ``faults``,
    oldest first; for an ``OutcomeUnknown`` with the attribute ``arrived``, the part is shown anyway.
    """

    room = "lobby"
    concurrently = True

    def __init__(self, abilities: Capabilities | None = None, **settings: Any) -> None:
        self._settings = settings
        able = abilities or Capabilities(length=200, repeat="keyed", threads=True, edits=True, pace=10_000)
        self.connector = type("Chat", (ChatConnector,), {"abilities": able, "chat": self})
        self.calls: list[Part] = []
        self.faults: list[BaseException] = []
        self.typing: list[Place] = []
        #: A suffix of the ids of users' messages.
        self.id_suffix = ""
        #: If set, calls of the platform wait for this event.
        self.gate: asyncio.Event | None = None
        self._refuses = False
        self._said: list[_SentMessage] = []
        self._all: dict[str, _SentMessage] = {}
        self.screen = _Screen(able)
        self._changed = asyncio.Condition()
        self._connection = 0
        self._numbers = count(1)

    def settings(self) -> Mapping[str, Any]:
        return self._settings

    # Actions of users and of the test.

    async def say(
        self,
        text: str,
        *,
        sender: str = "ana",
        room: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        replies_to_us: Callable[[], Awaitable[bool]] | None = None,
        bot: bool = False,
        file: tuple[str, str, bytes] | None = None,
        attachments: Sequence[Attachment] = (),
        said_at: datetime | None = None,
        in_reply_to: str | None = None,
    ) -> str:
        """Send a message as a user, with a file and other ``attachments``, possibly late."""
        heard = IncomingMessage(
            id=f"{next(self._numbers)}{self.id_suffix}",
            sender=Sender(id=sender, name=sender.title(), automatic=bot),
            place=Place(chat=room or f"with {sender}", thread=thread),
            text=text,
            direct=room is None,
            addressed=room is None or mention,
            replies_to_us=replies_to_us,
            attachments=(*attachments, *([] if file is None else [_attachment(*file)])),
            said_at=said_at,
            in_reply_to=in_reply_to,
        )
        self._all[heard.id] = said = _SentMessage(heard)
        await self._deliver(said)
        return heard.id

    async def repeat(self, message: str) -> None:
        await self._deliver(_SentMessage(self._all[message].heard))

    async def until_taken(self, message: str) -> None:
        """Wait until the connector has acknowledged a message."""
        async with asyncio.timeout(PATIENCE):
            await self._all[message].taken.wait()

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        place = (room or f"with {to}", thread)
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.screen.shown(*place)) >= count)
        return self.screen.shown(*place)

    async def called(self, count: int) -> Sequence[Part]:
        """Wait until the connector has sent ``count`` parts."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= count)
        return self.calls

    async def cut(self) -> None:
        async with self._changed:
            self._connection += 1
            self._changed.notify_all()

    async def limit(self, seconds: float | None) -> None:
        self.faults.append(RetryLater("too many", seconds=seconds))

    async def fail(self) -> None:
        self.faults.append(OutcomeUnknown("a fault"))

    async def refuse_message(self) -> None:
        self.faults.append(PermanentError("no such chat"))

    async def refuse_login(self) -> None:
        self._refuses = True

    async def accept_login(self) -> None:
        self._refuses = False

    # Calls of the connector.

    def connect(self) -> None:
        """Begin a connection; unacknowledged messages are repeated."""
        if self._refuses:
            raise PermanentError("wrong password")
        self._connection += 1
        self._here = self._connection
        self._said = [said for said in self._all.values() if not said.taken.is_set()]

    async def next(self) -> _SentMessage:
        async with self._changed:
            await self._changed.wait_for(lambda: self._said or self._connection != self._here)
        if self._connection != self._here:
            raise ConnectionError("the connection was cut")
        return self._said.pop(0)

    async def take(self, said: _SentMessage) -> None:
        """Acknowledge a message, so that it is not repeated."""
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
        shown_as = self.screen.show(part, new_id=str(next(self._numbers)))
        await self._notify()
        if fault is not None:
            raise fault
        return shown_as

    def forget(self, shown_as: str) -> None:
        """Delete a message, as a user does."""
        self.screen.remove(shown_as)

    async def _deliver(self, said: _SentMessage) -> None:
        self._said.append(said)
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Screen:
    """The messages that the account has sent."""

    def __init__(self, abilities: Capabilities) -> None:
        self._abilities = abilities
        self._messages: list[_Message] = []

    def shown(self, chat: str, thread: str | None) -> list[Shown]:
        return [
            Shown(id=message.id, text=message.text, thread=message.thread)
            for message in self._messages
            if (message.chat, message.thread) == (chat, thread)
        ]

    def find(self, key: str) -> str | None:
        return next((message.id for message in self._messages if message.key == key), None)

    def show(self, part: Part, *, new_id: str) -> str:
        """Show a part as a new or an edited message, and return its id. Raises ``PermanentError``."""
        abilities = self._abilities
        if abilities.measure(part.text) > abilities.length:
            raise PermanentError("too long")
        if part.edits is not None:
            for message in self._messages:
                if message.id == part.edits:
                    message.text = part.text
                    return message.id
            raise PermanentError("no such message")
        known = self.find(part.key) if abilities.repeat == "keyed" else None
        if known is None:
            place = part.place
            self._messages.append(_Message(new_id, place.chat, place.thread, part.text, part.key))
        return known or new_id

    def remove(self, shown_as: str) -> None:
        self._messages = [message for message in self._messages if message.id != shown_as]


def _attachment(name: str, media_type: str, content: bytes) -> Attachment:
    async def fetch(limit: int) -> bytes:
        if len(content) > limit:
            raise TooLarge
        return content

    kind = "image" if media_type.startswith("image/") else "file"
    return Attachment(kind=kind, name=name, media_type=media_type, size=len(content), fetch=fetch)
