"""Tests that every connector must pass: subclass ``ConnectorContract`` and define a ``platform`` fixture.

::

    class TestTelegram(ConnectorContract):
        @pytest.fixture
        async def platform(self):
            async with TelegramStandIn() as platform:
                yield platform

The platform is a real server, or a stand-in with the platform's network protocol.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from torana.connectors.base import (
    Connector,
    HookRequest,
    HookResponse,
    IncomingMessage,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    TooLarge,
)
from torana.connectors.transport.splitting import split
from torana.messages import utc_now
from torana.testing.malformed import malformations

#: Timeout, in seconds, for actions of a platform on the same machine.
PATIENCE = 20.0

BOMB = (
    "*_~`" * 50
    + "\n\n> > > > > deep\n\n1. a\n   - b\n     - c\n\n```\nunclosed `` <b>&lt;</b> </code>\n"
    + "| a | b |\n|---|---|\n| <script> | @everyone <!channel> @all |\n\n[x](javascript:alert(1)) ![y](http://"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A message of the account as the platform shows it: its id, text and thread."""

    id: str
    text: str
    thread: str | None = None


class Platform(ABC):
    """A platform in a test, with the connector's account, and users and bots who write to it."""

    #: The connector's class.
    connector: type[Connector[Any]]
    #: The id of the platform's room; None if it has no rooms. Users can have any name.
    room: str | None = None
    #: True if the platform repeats a message that was not acknowledged, at once or after a new connection.
    tells_again = True
    #: True if the platform marks senders that are bots.
    has_bots = True
    #: True if a message may have several lines.
    has_lines = True
    #: True if other chats go on while a message is processed slowly.
    concurrently = False
    #: The address that opens a chat with the connector's account; None if the platform has none.
    link: str | None = None
    #: True if messages can have attachments.
    has_files = True
    #: Changes each event before it is sent; None sends events as they are.
    change: Callable[[Any], Any] | None = None

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return the connector settings that reach this platform."""

    @abstractmethod
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
        """Send a message to the connector's account, directly or in a room; return the message's id.

        ``mention`` mentions the account as users do. ``file`` is a name, a media type and bytes.
        """

    @abstractmethod
    async def repeat(self, message: str) -> None:
        """Repeat an earlier message, as the platform does without an acknowledgement."""

    @abstractmethod
    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """Wait until the place has ``count`` messages of the account (edited ones count once); return them."""

    @abstractmethod
    async def cut(self) -> None:
        """Cut every connection of the account, as a network failure does."""

    async def limit(self, seconds: float | None) -> None:
        """Answer the next message of the account with a rate limit, with or without a waiting time."""
        pytest.skip("this platform does not limit")

    async def fail(self) -> None:
        """Answer the next message of the account with a failure of the platform."""
        pytest.skip("this platform does not fail by itself")

    async def refuse_message(self) -> None:
        """Answer the next message of the account with a permanent error."""
        pytest.skip("this platform does not refuse single messages")

    async def refuse_login(self) -> None:
        """Reject the account's credentials from now on."""
        pytest.skip("this platform has no credentials")

    def changed(self, event: Any) -> Any:
        """Return the event as ``change`` changes it; a platform with JSON events sends this one."""
        return event if self.change is None else self.change(deepcopy(event))

    def attach(self, hook: Hook | None) -> None:
        """Set the connector's hook for a platform that calls the gateway; None after its end."""
        del hook


class Hook:
    """The connector's entry for the platform's calls."""

    def __init__(self, connector: Connector[Any]) -> None:
        self._connector = connector

    async def __call__(self, request: HookRequest) -> HookResponse:
        """Answer a call; an error of the connector is a 503, as in the hooks listener."""
        try:
            return await self._connector.hook(request)
        except Exception:  # noqa: BLE001 - after any error the platform must call again
            return HookResponse(status=503)


class Line:
    """A running connector, and the messages that it receives."""

    def __init__(self, connector: Connector[Any], records: dict[tuple[str, str], bytes] | None = None) -> None:
        self.connector = connector
        #: The records of the account, by name and key.
        self.records = {} if records is None else records
        self.is_ready = asyncio.Event()
        self.heard: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        #: If true, messages cannot be stored.
        self.broken = False
        #: If set, a message with the text "slow" is processed when this event is set.
        self.gate: asyncio.Event | None = None
        self.signs = 0

    def ready(self) -> None:
        self.is_ready.set()

    def alive(self) -> None:
        self.signs += 1

    async def hear(self, heard: IncomingMessage) -> None:
        if self.broken:
            await self.heard.put(heard)
            raise OSError("the store cannot be written")
        await self.heard.put(heard)
        if self.gate is not None and "slow" in heard.text:
            await self.gate.wait()

    async def paired_ids(self, most: int) -> Sequence[str]:
        return []

    async def load_records(self, name: str) -> Mapping[str, bytes]:
        return {key: body for (one, key), body in self.records.items() if one == name}

    async def save_records(self, name: str, changes: Mapping[str, bytes | None]) -> None:
        for key, body in changes.items():
            self.records.pop((name, key), None)
            if body is not None:
                self.records[name, key] = body

    async def next(self) -> IncomingMessage:
        async with asyncio.timeout(PATIENCE):
            return await self.heard.get()


@asynccontextmanager
async def listening(
    platform: Platform,
    settings: Mapping[str, Any] | None = None,
    *,
    records: dict[tuple[str, str], bytes] | None = None,
) -> AsyncGenerator[Line]:
    """Run a connector on the platform; raise the error with which it ended before it was ready.

    ``records`` are the records of an earlier ``Line``.
    """
    kind = platform.connector
    connector = kind(kind.Settings.model_validate(settings or platform.settings()))
    line = Line(connector, records)
    run = asyncio.create_task(connector.run(line))
    ready = asyncio.create_task(line.is_ready.wait())
    try:
        await asyncio.wait({run, ready}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            run.result()
        assert line.is_ready.is_set(), "the connector is not ready"
        platform.attach(Hook(connector))
        yield line
    finally:
        platform.attach(None)
        ready.cancel()
        run.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await run


@asynccontextmanager
async def _chat(platform: Platform) -> AsyncGenerator[tuple[Line, Place]]:
    """Run a connector, and yield it with the place of a message that it has received."""
    async with listening(platform) as line:
        await platform.say("hello")
        yield line, (await line.next()).place


async def _show_in_parts(platform: Platform, line: Line, text: str, place: Place) -> str:
    """Send the parts of a reply, and return the text that the platform shows."""
    abilities = platform.connector.abilities
    pieces = split(text, abilities)
    for number, piece in enumerate(pieces):
        await line.connector.send(part(abilities.render(piece), place, number=number))
    return " ".join(one.text for one in await platform.shown(len(pieces)))


def part(text: str, place: Place, *, number: int = 0, edits: str | None = None, key: str = "") -> Part:
    """Return a part with a new key."""
    return Part(key=key or str(uuid4()), place=place, text=text, number=number, edits=edits)


def _rendered(platform: Platform, text: str, place: Place, *, edits: str | None = None) -> Part:
    """Return a part with Markdown in the platform's markup."""
    return part(platform.connector.abilities.render(text), place, edits=edits)


def _check_types(heard: IncomingMessage) -> None:
    """Check the values that come from the platform."""
    place, sender = heard.place, heard.sender
    texts = [
        heard.id,
        heard.text,
        sender.id,
        sender.name,
        place.chat,
        *place.reply_to,
        *place.reply_to.values(),
    ]
    texts += [text for file in heard.attachments for text in (file.name, file.media_type)]
    assert all(isinstance(text, str) for text in texts)
    assert place.thread is None or isinstance(place.thread, str)
    assert heard.said_at is None or heard.said_at.tzinfo is not None
    assert all(file.size is None or isinstance(file.size, int) for file in heard.attachments)


class _IncomingContract:
    """Tests of received messages."""

    async def test_direct_message_arrives(self, platform: Platform) -> None:
        """Text, sender and place are correct, and the message is addressed."""
        async with listening(platform) as line:
            await platform.say("hello, wörld 🙂\nsecond line" if platform.has_lines else "hello, wörld 🙂")
            heard = await line.next()
            assert heard.text.startswith("hello, wörld 🙂")
            assert heard.direct
            assert heard.addressed
            assert heard.sender.id
            assert not heard.sender.automatic
            assert heard.said_at is None or abs(heard.said_at - utc_now()) < timedelta(minutes=5)

    async def test_link_opens_a_chat_with_the_account(self, platform: Platform) -> None:
        """A connected account has the address that people open to talk with it."""
        async with listening(platform) as line:
            assert line.connector.link == platform.link

    async def test_users_are_different_senders(self, platform: Platform) -> None:
        """Two users are two senders, in different chats."""
        async with listening(platform) as line:
            await platform.say("one", sender="ana")
            ana = await line.next()
            await platform.say("two", sender="bob")
            bob = await line.next()
            assert ana.sender.id != bob.sender.id
            assert ana.place.chat != bob.place.chat
            assert ana.id != bob.id

    async def test_own_messages_are_ignored_and_bots_are_marked(self, platform: Platform) -> None:
        """The connector ignores its own messages and marks those of bots, so that no loops begin."""
        async with listening(platform) as line:
            await platform.say("hello")
            heard = await line.next()
            await line.connector.send(_rendered(platform, "mine", heard.place))
            await platform.shown(1)
            if platform.has_bots:
                await platform.say("beep", sender="robot", bot=True)
                assert (await line.next()).sender.automatic
            await platform.say("after")
            assert "after" in (await line.next()).text

    async def test_repeated_delivery_has_the_same_id(self, platform: Platform) -> None:
        """A repeated delivery has the same id."""
        async with listening(platform) as line:
            said = await platform.say("once")
            heard = await line.next()
            await platform.repeat(said)
            await platform.say("next")
            following = await line.next()
            while "next" not in following.text:
                assert following.id == heard.id
                following = await line.next()
            # The repetition may come after "next"; "last" comes after both.
            await platform.say("last")
            following = await line.next()
            while "last" not in following.text:
                assert following.id == heard.id
                following = await line.next()

    async def test_unacknowledged_message_is_repeated(self, platform: Platform) -> None:
        """A message is acknowledged after it is processed, not before."""
        if not platform.tells_again:
            pytest.skip("this platform delivers each message once")
        async with listening(platform) as line:
            line.broken = True
            await platform.say("do not lose me")
            missed = await line.next()
        async with listening(platform) as line:
            heard = await line.next()
            assert heard.id == missed.id
            assert "do not lose me" in heard.text

    async def test_slow_message_does_not_delay_other_chats(self, platform: Platform) -> None:
        """A slow message, for example with a slow file, is acknowledged after it is processed."""
        if not platform.concurrently:
            pytest.skip("this platform delivers all messages together, or one after the other")
        async with listening(platform) as line:
            line.gate = asyncio.Event()
            await platform.say("slow", sender="ana")
            assert "slow" in (await line.next()).text
            await platform.say("quick", sender="bob")
            assert "quick" in (await line.next()).text
        if not platform.tells_again:
            return
        async with listening(platform) as line:  # the slow message was not acknowledged
            while "slow" not in (await line.next()).text:
                pass

    async def test_malformed_event_does_not_affect_other_events(self, platform: Platform) -> None:
        """An event with any wrong field neither ends the connection nor blocks later events."""
        events: list[Any] = []

        def record(event: Any) -> Any:
            events.append(event)
            return event

        async with listening(platform) as line:
            platform.change = record
            await platform.say("hello")
            await line.next()
            if not events:
                pytest.skip("this platform sends no JSON events")
            for platform.change in malformations(events[0]):
                await platform.say("malformed")
            platform.change = None
            await platform.say("after")
            while (heard := await line.next()).text != "after":
                _check_types(heard)

    async def test_files_are_fetched_within_a_limit(self, platform: Platform) -> None:
        """An attachment can be fetched, within a limit."""
        if not platform.has_files:
            pytest.skip("this platform has no files")
        picture = b"\x89PNG\r\n\x1a\n" + bytes(2_000)
        async with listening(platform) as line:
            await platform.say("look", file=("cat.png", "image/png", picture))
            heard = await line.next()
            while not heard.attachments:
                heard = await line.next()
            attachment = heard.attachments[0]
            assert attachment.kind == "image"
            assert attachment.fetch is not None
            assert await attachment.fetch(10_000) == picture
            with pytest.raises(TooLarge):
                await attachment.fetch(1_000)


class _OutgoingContract:
    """Tests of sent parts."""

    async def test_reply_appears_in_the_place_of_the_message(self, platform: Platform) -> None:
        """A reply to a message appears in the place of the message, once."""
        async with listening(platform) as line:
            await platform.say("hello", sender="bob")
            heard = await line.next()
            sent = await line.connector.send(_rendered(platform, "The **answer** is 4.", heard.place))
            assert sent
            shown = await platform.shown(1, to="bob")
            assert "answer" in shown[0].text

    async def test_mention_addresses_the_account_in_a_room(self, platform: Platform) -> None:
        """Messages without a mention are not addressed; a leading mention is removed from the text."""
        if platform.room is None:
            pytest.skip("this platform has no rooms")
        async with listening(platform) as line:
            await platform.say("just talking", room=platform.room)
            overheard = await line.next()
            assert not overheard.direct
            assert not overheard.addressed
            await platform.say("/new", room=platform.room, mention=True)
            heard = await line.next()
            assert heard.addressed
            assert not heard.direct
            assert heard.text.strip() == "/new"
            await line.connector.send(_rendered(platform, "in the room", heard.place))
            assert "in the room" in (await platform.shown(1, room=platform.room))[0].text

    async def test_reply_in_a_thread_appears_in_the_thread(self, platform: Platform) -> None:
        """A reply to a message in a thread appears in the thread."""
        if not platform.connector.abilities.threads:
            pytest.skip("this platform has no threads")
        async with listening(platform) as line:
            first = await platform.say("start", room=platform.room, mention=True)
            start = await line.next()
            await platform.say("in the thread", room=platform.room, thread=first, mention=True)
            heard = await line.next()
            assert heard.place.thread
            assert heard.place.chat == start.place.chat
            await line.connector.send(_rendered(platform, "here", heard.place))
            assert "here" in (await platform.shown(1, room=platform.room, thread=first))[0].text

    async def test_each_part_of_a_long_reply_is_accepted(self, platform: Platform) -> None:
        """The platform accepts each part, and no text is lost between parts."""
        words = [f"word{n}" for n in range(min(platform.connector.abilities.length // 3, 3_000))]
        text = "\n\n".join(" ".join(words[i : i + 40]) for i in range(0, len(words), 40))
        async with _chat(platform) as (line, place):
            shown = await _show_in_parts(platform, line, text, place)
            assert [word for word in words if word not in shown] == []

    async def test_reply_of_only_markup_is_accepted(self, platform: Platform) -> None:
        """The platform accepts any Markdown that a model writes."""
        async with _chat(platform) as (line, place):
            assert "deep" in await _show_in_parts(platform, line, BOMB, place)

    @pytest.mark.parametrize("seconds", [7.0, None])
    async def test_rate_limit_raises_retry_later(self, platform: Platform, seconds: float | None) -> None:
        """After a rate limit, ``RetryLater`` has the platform's time, and a later call succeeds."""
        async with _chat(platform) as (line, place):
            await platform.limit(seconds)
            with pytest.raises(RetryLater) as raised:
                await line.connector.send(_rendered(platform, "too early", place))
            assert raised.value.seconds == seconds
            await line.connector.send(_rendered(platform, "in time", place))
            assert "in time" in (await platform.shown(1))[0].text

    async def test_platform_failure_raises_an_error(self, platform: Platform) -> None:
        """A failure raises ``RetryLater`` or ``OutcomeUnknown``."""
        async with _chat(platform) as (line, place):
            await platform.fail()
            with pytest.raises((RetryLater, OutcomeUnknown)):
                await line.connector.send(_rendered(platform, "lost?", place))

    async def test_refused_message_raises_permanent_error(self, platform: Platform) -> None:
        """A permanent error raises ``PermanentError``."""
        async with _chat(platform) as (line, place):
            await platform.refuse_message()
            with pytest.raises(PermanentError):
                await line.connector.send(_rendered(platform, "no", place))

    async def test_edit_replaces_the_preview(self, platform: Platform) -> None:
        """A preview and the final text are one message."""
        if not platform.connector.abilities.edits:
            pytest.skip("this platform has no edits")
        async with _chat(platform) as (line, place):
            preview = await line.connector.send(_rendered(platform, "thinking", place))
            final = _rendered(platform, "thought it over", place, edits=preview)
            await line.connector.send(final)
            await line.connector.send(final)  # the same text again is no error
            shown = await platform.shown(1)
            assert [one.text.strip() for one in shown] == ["thought it over"]

    async def test_repeated_part_is_shown_once(self, platform: Platform) -> None:
        """The platform recognises the key, or the connector finds the part."""
        repeat = platform.connector.abilities.repeat
        if repeat == "blind":
            pytest.skip("this platform has no keys and cannot be asked")
        async with _chat(platform) as (line, place):
            message = _rendered(platform, "only once", place)
            if repeat == "readable":
                assert await line.connector.find(message) is None
            sent = await line.connector.send(message)
            if repeat == "readable":
                assert await line.connector.find(message) == sent
            else:
                await line.connector.send(message)
            await line.connector.send(_rendered(platform, "the end", place))
            shown = await platform.shown(2)
            assert ["only once" in one.text for one in shown] == [True, False]

    async def test_typing_raises_no_error(self, platform: Platform) -> None:
        """The typing indicator causes no error."""
        async with _chat(platform) as (line, place):
            await line.connector.typing(place)


class _ConnectionContract:
    """Tests of the connection itself."""

    async def test_cut_connection_ends_or_reconnects(self, platform: Platform) -> None:
        """After a cut the connector ends or reconnects; it never stays without a connection."""
        async with listening(platform) as line:
            await platform.say("before")
            await line.next()
            await platform.cut()
        async with listening(platform) as line:
            await platform.say("after")
            while "after" not in (await line.next()).text:
                pass

    async def test_wrong_credentials_are_refused(self, platform: Platform) -> None:
        """Wrong credentials raise ``PermanentError``."""
        await platform.refuse_login()
        with pytest.raises(PermanentError):
            async with listening(platform):
                pass

    async def test_no_task_remains_after_cancellation(self, platform: Platform) -> None:
        """After a cancellation, no task of the connector goes on."""
        before = asyncio.all_tasks()
        async with listening(platform) as line:
            await platform.say("hello")
            await line.next()
            ours = asyncio.all_tasks() - before
        _, left = await asyncio.wait([*ours, asyncio.create_task(asyncio.sleep(0))], timeout=PATIENCE)
        assert left == set()


class ConnectorContract(_IncomingContract, _OutgoingContract, _ConnectionContract):
    """All tests. Tests of features that the platform lacks are skipped."""
