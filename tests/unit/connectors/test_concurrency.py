"""Concurrent and sequential ingress of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, cast

import pytest
from tests.unit.connectors.conftest import Gateway

from torana.connectors.base import Attachment, IncomingMessage, MessageSink, Place, Sender
from torana.connectors.platforms.matrix.client import Homeserver
from torana.connectors.platforms.matrix.position import SyncPosition
from torana.connectors.transport.concurrency import concurrently
from torana.testing import ScriptedModel
from torana.testing.chat import Chat

Open = Callable[..., Awaitable[Gateway]]
InTime = Callable[[], asyncio.Timeout]

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


async def test_hanging_file_delays_only_its_own_chat(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    arrives = asyncio.Event()

    async def fetch(_limit: int) -> bytes:
        await arrives.wait()
        return PNG

    picture = Attachment(kind="image", name="cat.png", media_type="image/png", fetch=fetch)
    gateway = await open_gateway(chat, ScriptedModel("to bob", "a cat", "a tail"), takes=["image"])
    said = await chat.say("look", attachments=[picture])
    later = await chat.say("what is behind it?")

    await chat.until_taken(await chat.say("hello", sender="bob"))
    assert [one.text for one in await chat.shown(1, to="bob")] == ["to bob"]
    assert await gateway.turns.reader.find_by_platform_message("home", said) is None
    assert await gateway.turns.reader.find_by_platform_message("home", later) is None
    arrives.set()

    assert [one.text for one in await chat.shown(2)] == ["a cat", "a tail"]
    first, second = [await gateway.turns.reader.find_by_platform_message("home", one) for one in (said, later)]
    assert first is not None
    assert second is not None
    assert (first.content, first.seq, second.seq) == ("look\n[image: cat.png, image/png]", 1, 2)


async def test_many_messages_behind_hanging_file_delay_no_other_chat(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], per_minute=1_000)
    asked, arrives = asyncio.Event(), asyncio.Event()

    async def fetch(_limit: int) -> bytes:
        asked.set()
        await arrives.wait()
        return PNG

    picture = Attachment(kind="image", name="cat.png", media_type="image/png", fetch=fetch)
    await open_gateway(chat, ScriptedModel("to bob", *["to ana"] * 11), takes=["image"])
    await chat.say("look", attachments=[picture])
    for number in range(500):
        await chat.say(f"and {number}" if number % 50 == 0 else "")  # a message without text creates no turn
    await chat.until_taken(await chat.say("hello", sender="bob"))
    assert [one.text for one in await chat.shown(1, to="bob")] == ["to bob"]
    assert asked.is_set()
    arrives.set()
    assert len(await chat.shown(11)) == 11


class Held:
    """A receiver that takes one message for each release of ``let``."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.let = asyncio.Semaphore(0)
        self.fault = fault

    async def hear(self, heard: IncomingMessage) -> None:
        self.begun.put_nowait(heard.id)
        await self.let.acquire()
        if self.fault is not None:
            raise self.fault


def message(name: str, text: str = "x") -> IncomingMessage:
    return IncomingMessage(
        id=name, sender=Sender(id="ana"), place=Place(chat="c"), text=text, direct=True, addressed=True
    )


async def test_message_that_cannot_be_taken_ends_connection_at_once(in_time: InTime) -> None:
    sink, taken = Held(OSError("the store is away")), asyncio.Event()

    async def take() -> None:
        taken.set()

    async def listen() -> None:
        async with in_time(), concurrently(cast("MessageSink", sink)) as hear:
            await hear(message("one"), take)
            await hear(message("two"), take)
            sink.let.release()
            await asyncio.Event().wait()  # no further message comes from the platform

    with pytest.raises(OSError, match="the store is away"):
        await listen()
    assert not taken.is_set()


@pytest.mark.parametrize(("length", "most"), [(0, 2_000), (495_000, 20), (10**8, 1)])
async def test_closing_waits_for_all_messages_and_begun_messages_are_bounded(
    in_time: InTime, length: int, most: int
) -> None:
    sink, taken, text = Held(), list[str](), "x" * length

    async def listen() -> None:
        async with concurrently(cast("MessageSink", sink)) as hear:
            for number in range(most + 50):

                async def take(number: int = number) -> None:
                    taken.append(str(number))

                await hear(message(str(number), text), take)

    listening = asyncio.create_task(listen())
    async with in_time():
        begun = [await sink.begun.get() for _ in range(most)]
        assert begun == [str(number) for number in range(most)]
        assert taken == []
        assert sink.begun.empty()
        sink.let.release()
        assert await sink.begun.get() == str(most)
        for _ in range(most + 49):
            sink.let.release()
        await listening
    assert len(taken) == most + 50


async def test_hanging_files_of_a_sender_do_not_delay_files_of_others(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    begun, arrives = asyncio.Event(), asyncio.Event()

    async def hang(_limit: int) -> bytes:
        begun.set()
        await arrives.wait()
        return PNG

    async def fetch(_limit: int) -> bytes:
        return PNG

    hanging = Attachment(kind="image", name="cat.png", media_type="image/png", fetch=hang)
    quick = Attachment(kind="image", name="dog.png", media_type="image/png", fetch=fetch)
    gateway = await open_gateway(chat, ScriptedModel("a dog", "cats"), takes=["image"])
    await chat.say("look", attachments=[hanging] * 5)
    await begun.wait()

    said = await chat.say("look", sender="bob", attachments=[quick])

    assert [one.text for one in await chat.shown(1, to="bob")] == ["a dog"]
    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None
    assert turn.content == "look\n[image: dog.png, image/png]"
    arrives.set()
    assert [one.text for one in await chat.shown(1)] == ["cats"]


class StoredTokens(Homeserver):
    """A homeserver that records the stored positions."""

    def __init__(self) -> None:
        super().__init__(address="http://127.0.0.1:9", user="@torana:matrix.test", device="TORANA")
        self.tokens: list[str] = []

    async def call(self, method: Literal["GET", "PUT"], path: str, body: object = None) -> Mapping[str, Any]:
        del method, path
        self.tokens.append(cast("Mapping[str, str]", body)["token"])
        return {}


async def test_position_of_matrix_passes_no_message_in_progress(in_time: InTime) -> None:
    home = StoredTokens()
    position = SyncPosition(home)
    gates = {name: asyncio.Event() for name in ("one", "two", "three")}

    class Sink:
        async def hear(self, heard: IncomingMessage) -> None:
            await gates[heard.text].wait()

    async with in_time(), concurrently(cast("MessageSink", Sink())) as hear:
        for name in gates:
            async with position.poll(hear) as messages:
                await messages.hear(message(name, name))
                messages.keep(f"after {name}")
        async with position.poll(hear):
            pass
        stored: list[list[str]] = []
        for name in ("two", "one", "three"):
            gates[name].set()
            for _ in range(10):
                await asyncio.sleep(0)
            stored.append(list(home.tokens))

    assert stored == [[], ["after two"], ["after two", "after three"]]
