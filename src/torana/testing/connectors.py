"""What every connector promises, as tests: subclass ``ConnectorContract`` and give it a ``platform``.

::

    class TestTelegram(ConnectorContract):
        @pytest.fixture
        async def platform(self):
            async with TelegramStandIn() as platform:
                yield platform

The platform is a real server, or a stand-in that speaks the platform's own wire to the platform's own library.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from torana.connectors.base import (
    Connector,
    Heard,
    HookRequest,
    HookResponse,
    Part,
    Place,
    Refused,
    TooLarge,
    TryLater,
    Unsure,
)
from torana.connectors.splitting import split
from torana.messages import utc_now

#: Seconds in which a platform on the same machine has done anything.
PATIENCE = 20.0

BOMB = (
    "*_~`" * 50
    + "\n\n> > > > > deep\n\n1. a\n   - b\n     - c\n\n```\nunclosed `` <b>&lt;</b> </code>\n"
    + "| a | b |\n|---|---|\n| <script> | @everyone <!channel> @all |\n\n[x](javascript:alert(1)) ![y](http://"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A message of ours as the platform shows it: its text, its id and the thread in which it stands."""

    id: str
    text: str
    thread: str | None = None


class Platform(ABC):
    """A platform in a test, with the connector's own account, and people and bots who talk to it."""

    #: The connector's class.
    connector: type[Connector[Any]]
    #: A direct chat's people are called by any name; a room, where the platform has some, by this id.
    room: str | None = None
    #: Whether a message heard and not taken is told again, by itself or after a new connection.
    tells_again = True
    #: Whether others see that a sender is a machine.
    has_bots = True
    #: Whether a message may have lines.
    has_lines = True
    #: Whether other chats go on while a message takes long to be taken.
    abreast = False
    #: Whether attachments arrive.
    has_files = True

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """What the settings have to say of the connector so that it reaches this platform."""

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
        """Say something to the connector's account, directly or in a room; returns the message's id.

        ``mention`` addresses the account as people do. ``file`` is a name, a media type and bytes.
        """

    @abstractmethod
    async def repeat(self, message: str) -> None:
        """Tell a message of the past again, as the platform does when it is not sure that it was taken."""

    @abstractmethod
    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """Wait until there are so many messages of the account there, edited ones once, and return them."""

    @abstractmethod
    async def cut(self) -> None:
        """End every connection of the account, as a network does."""

    async def limit(self, seconds: float | None) -> None:
        """Answer the next message of the account with "too many", naming a time or none."""
        pytest.skip("this platform does not limit")

    async def fail(self) -> None:
        """Answer the next message of the account with a failure of the platform's."""
        pytest.skip("this platform does not fail by itself")

    async def refuse_message(self) -> None:
        """Answer the next message of the account with a refusal for good."""
        pytest.skip("this platform does not refuse single messages")

    async def refuse_login(self) -> None:
        """Take the account's credentials for wrong from now on."""
        pytest.skip("this platform knows no credentials")

    def attach(self, hook: Hook | None) -> None:
        """Where a platform that calls us finds the connector; None when it is gone."""
        del hook


class Hook:
    """The door of a connector for the platform's calls."""

    def __init__(self, connector: Connector[Any]) -> None:
        self._connector = connector

    async def __call__(self, request: HookRequest) -> HookResponse:
        """Answer a call; what the connector raises is a 503, as the hooks listener has it."""
        try:
            return await self._connector.hook(request)
        except Exception:  # noqa: BLE001 - any fault is the platform's sign to call again
            return HookResponse(status=503)


class Line:
    """A running connector, and what it hears."""

    def __init__(self, connector: Connector[Any]) -> None:
        self.connector = connector
        self.is_ready = asyncio.Event()
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        #: While set, nothing heard can be written down.
        self.broken = False
        #: While set, a message that says "slow" is taken when this is.
        self.gate: asyncio.Event | None = None
        self.signs = 0

    def ready(self) -> None:
        """As ``Ears``."""
        self.is_ready.set()

    def alive(self) -> None:
        """As ``Ears``."""
        self.signs += 1

    async def hear(self, heard: Heard) -> None:
        """As ``Ears``."""
        if self.broken:
            await self.heard.put(heard)
            raise OSError("the store cannot be written")
        await self.heard.put(heard)
        if self.gate is not None and "slow" in heard.text:
            await self.gate.wait()

    async def paired(self, most: int) -> Sequence[str]:
        """As ``Ears``: nobody was let in."""
        return []

    async def next(self) -> Heard:
        """The next message heard."""
        async with asyncio.timeout(PATIENCE):
            return await self.heard.get()


@asynccontextmanager
async def listening(platform: Platform, settings: Mapping[str, Any] | None = None) -> AsyncGenerator[Line]:
    """A connector that listens to the platform; raises what it raised before it was ready."""
    kind = platform.connector
    connector = kind(kind.Settings.model_validate(settings or platform.settings()))
    line = Line(connector)
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


def part(text: str, place: Place, *, number: int = 0, edits: str | None = None, key: str = "") -> Part:
    """A part with a key of its own."""
    return Part(key=key or str(uuid4()), place=place, text=text, number=number, edits=edits)


class ConnectorContract:
    """The tests. What a platform has not, its tests skip."""

    async def test_a_direct_message_is_heard(self, platform: Platform) -> None:
        """Text, sender and place come through, and it is addressed."""
        async with listening(platform) as line:
            await platform.say("hello, wörld 🙂\nsecond line" if platform.has_lines else "hello, wörld 🙂")
            heard = await line.next()
            assert heard.text.startswith("hello, wörld 🙂")
            assert heard.direct
            assert heard.addressed
            assert heard.sender.id
            assert not heard.sender.automatic
            assert heard.said_at is None or abs(heard.said_at - utc_now()) < timedelta(minutes=5)

    async def test_people_are_told_apart(self, platform: Platform) -> None:
        """Two people are two senders, in chats of their own."""
        async with listening(platform) as line:
            await platform.say("one", sender="ana")
            ana = await line.next()
            await platform.say("two", sender="bob")
            bob = await line.next()
            assert ana.sender.id != bob.sender.id
            assert ana.place.chat != bob.place.chat
            assert ana.id != bob.id

    async def test_a_reply_stands_where_the_message_was_said(self, platform: Platform) -> None:
        """What is sent to the place of a message is shown there, once."""
        async with listening(platform) as line:
            await platform.say("hello", sender="bob")
            heard = await line.next()
            sent = await line.connector.send(self.rendered(platform, "The **answer** is 4.", heard.place))
            assert sent
            shown = await platform.shown(1, to="bob")
            assert "answer" in shown[0].text

    async def test_a_room_is_answered_when_it_addresses_the_account(self, platform: Platform) -> None:
        """In a room others talk too; a mention is taken off the text."""
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
            await line.connector.send(self.rendered(platform, "in the room", heard.place))
            assert "in the room" in (await platform.shown(1, room=platform.room))[0].text

    async def test_a_thread_is_answered_in_the_thread(self, platform: Platform) -> None:
        """A thread is a place of its own."""
        if not platform.connector.abilities.threads:
            pytest.skip("this platform has no threads")
        async with listening(platform) as line:
            first = await platform.say("start", room=platform.room, mention=True)
            start = await line.next()
            await platform.say("in the thread", room=platform.room, thread=first, mention=True)
            heard = await line.next()
            assert heard.place.thread
            assert heard.place.chat == start.place.chat
            await line.connector.send(self.rendered(platform, "here", heard.place))
            assert "here" in (await platform.shown(1, room=platform.room, thread=first))[0].text

    async def test_our_own_messages_are_not_heard_and_bots_are_marked(self, platform: Platform) -> None:
        """No loops begin here."""
        async with listening(platform) as line:
            await platform.say("hello")
            heard = await line.next()
            await line.connector.send(self.rendered(platform, "mine", heard.place))
            await platform.shown(1)
            if platform.has_bots:
                await platform.say("beep", sender="robot", bot=True)
                assert (await line.next()).sender.automatic
            await platform.say("after")
            assert "after" in (await line.next()).text

    async def test_told_again_it_is_the_same_message(self, platform: Platform) -> None:
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
            # What is told again may come behind it; what is said now comes behind both.
            await platform.say("last")
            following = await line.next()
            while "last" not in following.text:
                assert following.id == heard.id
                following = await line.next()

    async def test_what_was_not_taken_is_told_again(self, platform: Platform) -> None:
        """The platform is told that a message was taken after it was, and not before."""
        if not platform.tells_again:
            pytest.skip("this platform tells everything once")
        async with listening(platform) as line:
            line.broken = True
            await platform.say("do not lose me")
            missed = await line.next()
        async with listening(platform) as line:
            heard = await line.next()
            assert heard.id == missed.id
            assert "do not lose me" in heard.text

    async def test_a_message_that_takes_long_holds_up_no_other_chat(self, platform: Platform) -> None:
        """Its file may hang; and that it was taken is told when it was."""
        if not platform.abreast:
            pytest.skip("this platform is told of all messages together, or tells one after the other")
        async with listening(platform) as line:
            line.gate = asyncio.Event()
            await platform.say("slow", sender="ana")
            assert "slow" in (await line.next()).text
            await platform.say("quick", sender="bob")
            assert "quick" in (await line.next()).text
        if not platform.tells_again:
            return
        async with listening(platform) as line:  # which was not taken
            while "slow" not in (await line.next()).text:
                pass

    async def test_a_cut_connection_is_left_or_mended(self, platform: Platform) -> None:
        """After a cut the connector ends, or goes on by itself; it is never deaf."""
        async with listening(platform) as line:
            await platform.say("before")
            await line.next()
            await platform.cut()
        async with listening(platform) as line:
            await platform.say("after")
            while "after" not in (await line.next()).text:
                pass

    async def test_long_replies_fit_in_their_parts(self, platform: Platform) -> None:
        """Every part is taken by the platform, and nothing is lost between them."""
        abilities = platform.connector.abilities
        words = [f"word{n}" for n in range(min(abilities.length // 3, 3_000))]
        text = "\n\n".join(" ".join(words[i : i + 40]) for i in range(0, len(words), 40))
        async with listening(platform) as line:
            await platform.say("tell me much")
            place = (await line.next()).place
            pieces = split(text, abilities)
            for number, piece in enumerate(pieces):
                await line.connector.send(part(abilities.render(piece), place, number=number))
            shown = " ".join(one.text for one in await platform.shown(len(pieces)))
            assert [word for word in words if word not in shown] == []

    async def test_a_reply_of_nothing_but_markup_is_shown(self, platform: Platform) -> None:
        """Whatever a model writes, it is a message and nothing more."""
        abilities = platform.connector.abilities
        async with listening(platform) as line:
            await platform.say("surprise me")
            place = (await line.next()).place
            pieces = split(BOMB, abilities)
            for number, piece in enumerate(pieces):
                await line.connector.send(part(abilities.render(piece), place, number=number))
            assert "deep" in " ".join(one.text for one in await platform.shown(len(pieces)))

    @pytest.mark.parametrize("seconds", [7.0, None])
    async def test_a_limit_is_obeyed(self, platform: Platform, seconds: float | None) -> None:
        """Too much is no loss: the platform's own time is passed on, and it works afterwards."""
        async with listening(platform) as line:
            await platform.say("hello")
            place = (await line.next()).place
            await platform.limit(seconds)
            with pytest.raises(TryLater) as raised:
                await line.connector.send(self.rendered(platform, "too early", place))
            assert raised.value.seconds == seconds
            await line.connector.send(self.rendered(platform, "in time", place))
            assert "in time" in (await platform.shown(1))[0].text

    async def test_a_failure_of_the_platform_is_no_success(self, platform: Platform) -> None:
        """A fault is told as what it is: to be tried again, or unsure."""
        async with listening(platform) as line:
            await platform.say("hello")
            place = (await line.next()).place
            await platform.fail()
            with pytest.raises((TryLater, Unsure)):
                await line.connector.send(self.rendered(platform, "lost?", place))

    async def test_a_refusal_is_final(self, platform: Platform) -> None:
        """A chat that is gone is not written to for ever."""
        async with listening(platform) as line:
            await platform.say("hello")
            place = (await line.next()).place
            await platform.refuse_message()
            with pytest.raises(Refused):
                await line.connector.send(self.rendered(platform, "no", place))

    async def test_wrong_credentials_are_refused(self, platform: Platform) -> None:
        """The operator is told, and the platform is not asked again and again."""
        await platform.refuse_login()
        with pytest.raises(Refused):
            async with listening(platform):
                pass

    async def test_an_edit_replaces_what_was_shown(self, platform: Platform) -> None:
        """A preview and the final text are one message."""
        if not platform.connector.abilities.edits:
            pytest.skip("this platform has no edits")
        async with listening(platform) as line:
            await platform.say("hello")
            place = (await line.next()).place
            preview = await line.connector.send(self.rendered(platform, "thinking", place))
            final = self.rendered(platform, "thought it over", place, edits=preview)
            await line.connector.send(final)
            await line.connector.send(final)  # the same text again is no fault
            shown = await platform.shown(1)
            assert [one.text.strip() for one in shown] == ["thought it over"]

    async def test_a_part_sent_twice_is_shown_once(self, platform: Platform) -> None:
        """By its key, or because the platform can be asked."""
        repeat = platform.connector.abilities.repeat
        if repeat == "blind":
            pytest.skip("this platform has no keys and cannot be asked")
        async with listening(platform) as line:
            await platform.say("hello")
            place = (await line.next()).place
            message = self.rendered(platform, "only once", place)
            if repeat == "readable":
                assert await line.connector.find(message) is None
            sent = await line.connector.send(message)
            if repeat == "readable":
                assert await line.connector.find(message) == sent
            else:
                await line.connector.send(message)
            await line.connector.send(self.rendered(platform, "the end", place))
            shown = await platform.shown(2)
            assert ["only once" in one.text for one in shown] == [True, False]

    async def test_typing_is_harmless(self, platform: Platform) -> None:
        """It may fail, and is nobody's loss."""
        async with listening(platform) as line:
            await platform.say("hello")
            await line.connector.typing((await line.next()).place)

    async def test_files_arrive_and_are_bounded(self, platform: Platform) -> None:
        """An attachment is named, and its bytes can be had up to a bound."""
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

    async def test_it_leaves_nothing_behind(self, platform: Platform) -> None:
        """Cancelled, it ends, and no task of its own goes on."""
        before = asyncio.all_tasks()
        async with listening(platform) as line:
            await platform.say("hello")
            await line.next()
            ours = asyncio.all_tasks() - before
        _, left = await asyncio.wait([*ours, asyncio.create_task(asyncio.sleep(0))], timeout=PATIENCE)
        assert left == set()

    @staticmethod
    def rendered(platform: Platform, text: str, place: Place, *, edits: str | None = None) -> Part:
        """A part with Markdown as the platform writes it."""
        return part(platform.connector.abilities.render(text), place, edits=edits)
