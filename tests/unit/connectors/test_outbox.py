"""The outbox of an account under faults of the database, the platform and the clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import inf, nan
from typing import Any, NoReturn

import pytest

from torana.connectors.base import Capabilities, OutcomeUnknown, Place, RetryLater
from torana.connectors.runtime.addressing import dump_place
from torana.connectors.runtime.outbox import REPEATED, Outbox
from torana.errors import StoreUnavailable
from torana.measurements import Measurements
from torana.messages import EVERYONE, utc_now
from torana.store.engine.database import Database
from torana.store.rows import deliveries as rows
from torana.store.rows.audit import Act
from torana.store.rows.deliveries import Delivery
from torana.testing.chat import Chat
from torana.turns.deliveries import Deliveries
from torana.turns.events.activity import Activity

Outage = Callable[[], AbstractContextManager[None]]

#: The prefix of the names of tasks that deliver.
DELIVERS = "dlv_"


def able(repeat: str) -> Capabilities:
    return Capabilities(length=100, repeat=repeat, pace=1_000_000)  # pyright: ignore[reportArgumentType]


class Sending:
    """An outbox that delivers to a chat with a clock of its own: pauses move the clock and take no time.

    ``meanwhile`` runs during each pause of a delivery.
    """

    def __init__(self, database: Database, chat: Chat) -> None:
        self.chat = chat
        self.measurements = Measurements()
        self.now = utc_now()
        self.meanwhile: Callable[[float], Awaitable[None]] = self._nothing
        self._looks: asyncio.Queue[None] = asyncio.Queue()
        self._database = database
        self._outbox = Outbox(
            account="home",
            database=database,
            clock=lambda: self.now,
            settled=self._settled,
            rendering=ThreadPoolExecutor(1),
            measurements=self.measurements,
            activity=Activity(),
            pause=self._pause,
        )
        self.operator = Deliveries(
            database=database, wake=lambda _: self._outbox.wake(), clock=lambda: self.now
        )
        connector = chat.connector(chat.connector.Settings.model_validate(dict(chat.settings())))
        self.task = asyncio.create_task(self._outbox.deliver(connector))

    async def say(self, *texts: str) -> None:
        """Add a notice to Ana for each text."""
        for text in texts:
            place = dump_place(Place(chat="with ana"))
            work = partial(rows.add_notice, account="home", line="ana", place=place, text=text, at=self.now)
            await self._database.run(work)
        self._outbox.wake()

    async def rows(self) -> Sequence[Delivery]:
        """Return all deliveries, the oldest first."""
        return (await self._database.run(partial(rows.list_deliveries, owner=EVERYONE, limit=200)))[::-1]

    async def idle(self) -> Sequence[Delivery]:
        """Wait until no delivery is in progress and return all deliveries."""
        async with asyncio.timeout(20):
            while True:
                with suppress(StoreUnavailable):
                    found = await self.rows()
                    if not any(row.state in ("pending", "sending") for row in found):
                        return found
                await self._looks.get()

    async def _pause(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith(DELIVERS):
            await self.meanwhile(seconds)
        else:
            self._looks.put_nowait(None)
            if seconds >= 60:
                await asyncio.Event().wait()
        self.now += timedelta(seconds=seconds)

    async def _settled(self, _delivery: Delivery) -> None: ...

    async def _nothing(self, _seconds: float) -> None: ...


@pytest.fixture
async def sending(database: Database) -> AsyncGenerator[Callable[[Chat], Sending]]:
    """``sending(chat)`` starts an outbox that delivers to the chat."""
    opened: list[Sending] = []

    def make(chat: Chat) -> Sending:
        opened.append(Sending(database, chat))
        return opened[-1]

    yield make
    for one in opened:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


@pytest.mark.parametrize("days", [1, 1_000])
async def test_delivery_postponed_by_fast_clock_is_sent_at_once(
    sending: Callable[[Chat], Sending], database: Database, days: int
) -> None:
    ahead = utc_now() + timedelta(days=days)
    work = partial(
        rows.add_notice,
        account="home",
        line="ana",
        place=dump_place(Place(chat="with ana")),
        text="hello",
        at=ahead,
    )
    await database.run(work)
    chat = Chat()
    outbox = sending(chat)
    await outbox.idle()
    assert [part.text for part in chat.calls] == ["hello"]
    assert outbox.now < ahead


async def test_part_sent_during_database_outage_is_not_sent_again(
    sending: Callable[[Chat], Sending], outage: Outage
) -> None:
    chat = Chat(able("blind"))
    chat.gate = asyncio.Event()
    home = sending(chat)
    await home.say("one", "two")
    await chat.called(1)
    pauses: list[float] = []

    with ExitStack() as away:
        away.enter_context(outage())

        async def until_the_store_is_back(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                away.close()

        home.meanwhile = until_the_store_is_back
        chat.gate.set()
        found = await home.idle()

    assert pauses == [0.1, 0.5, 2.0]
    assert [part.text for part in chat.calls] == ["one", "two"]
    assert [(row.state, row.tries, row.unsure) for row in found] == [("sent", 1, 0)] * 2


@pytest.mark.parametrize(
    ("repeat", "settings", "called", "state"),
    [
        ("keyed", {}, ["one", "one"], "sent"),
        ("readable", {}, ["one"], "sent"),
        ("blind", {}, ["one", f"{REPEATED}one"], "sent"),
        ("blind", {"on_ambiguous": "hold"}, ["one"], "ambiguous"),
    ],
)
async def test_attempt_with_unrecorded_outcome_is_unsure(
    sending: Callable[[Chat], Sending],
    outage: Outage,
    repeat: str,
    settings: dict[str, str],
    called: list[str],
    state: str,
) -> None:
    chat = Chat(able(repeat), **settings)
    chat.gate = asyncio.Event()
    shown_but_nobody_says_so = OutcomeUnknown("no answer")
    shown_but_nobody_says_so.arrived = True  # pyright: ignore[reportAttributeAccessIssue]
    chat.faults = [shown_but_nobody_says_so]
    home = sending(chat)
    await home.say("one", "two")
    await chat.called(1)

    with ExitStack() as away:
        away.enter_context(outage())

        async def store_is_back(_seconds: float) -> None:
            away.close()

        home.meanwhile = store_is_back
        chat.gate.set()
        one, two = await home.idle()

    assert [part.text for part in chat.calls] == [*called, "two"]
    assert len({part.key for part in chat.calls}) == 2
    assert (one.state, one.unsure, two.state) == (state, 0 if state == "ambiguous" else 1, "sent")
    if state == "ambiguous":
        assert one.reason == "the outcome of an earlier attempt is unknown"


async def test_call_cancelled_by_library_may_have_arrived(
    sending: Callable[[Chat], Sending],
) -> None:
    chat = Chat(able("blind"), on_ambiguous="hold")
    chat.faults = [asyncio.CancelledError()]
    home = sending(chat)

    await home.say("one", "two")
    one, two = await home.idle()

    assert (one.state, one.reason) == ("ambiguous", "the call was cancelled internally")
    assert (two.state, [part.text for part in chat.calls]) == ("sent", ["one", "two"])


async def test_end_of_connection_waits_for_call_in_progress(sending: Callable[[Chat], Sending]) -> None:
    chat = Chat(able("blind"))
    chat.gate = asyncio.Event()
    home = sending(chat)
    await home.say("one", "two")
    await chat.called(1)

    home.task.cancel()
    for _ in range(20):  # longer than a cancellation takes
        await asyncio.sleep(0)
    chat.gate.set()
    await asyncio.gather(home.task, return_exceptions=True)

    assert [row.state for row in await home.rows()] == ["sent", "pending"]
    assert [part.text for part in chat.calls] == ["one"]


async def test_end_of_connection_cancels_attempt_that_waits_for_its_turn(
    sending: Callable[[Chat], Sending],
) -> None:
    chat = Chat(able("blind"))
    home, waits = sending(chat), asyncio.Event()

    async def wait(_seconds: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    home.meanwhile = wait
    await chat.limit(5)
    await home.say("one", "two")
    async with asyncio.timeout(20):
        await waits.wait()
    home.task.cancel()
    await asyncio.gather(home.task, return_exceptions=True)

    assert [row.state for row in await home.rows()] == ["pending", "pending"]
    assert len(chat.calls) == 1


async def test_delivery_dropped_while_it_waits_is_never_sent(
    sending: Callable[[Chat], Sending], act: Act
) -> None:
    chat = Chat(able("keyed"))
    chat.faults = [RetryLater("slow down", seconds=30)]
    home = sending(chat)

    async def drop(seconds: float) -> None:
        assert seconds > 20
        home.meanwhile = waits
        await home.operator.drop(EVERYONE, (await home.rows())[0].id, act=act)

    async def waits(_seconds: float) -> None: ...

    home.meanwhile = drop
    await home.say("one", "two")
    one, two = await home.idle()

    assert [part.text for part in chat.calls] == ["one", "two"]
    assert (one.state, one.tries, two.state) == ("dropped", 1, "sent")


async def test_text_of_many_parts_is_stored_in_few_rows(sending: Callable[[Chat], Sending]) -> None:
    lines = Capabilities(
        length=100, repeat="blind", pace=1_000_000, measure=lambda text: 40 * len(text.split())
    )
    chat = Chat(lines)
    chat.faults = [RetryLater("slow down", seconds=30)]
    home = sending(chat)
    waiting: list[int] = []

    async def count(_seconds: float) -> None:
        waiting.append(len([row for row in await home.rows() if row.state == "pending"]))

    home.meanwhile = count
    words = [f"w{number}" for number in range(100)]
    await home.say("\n".join(words), "next")
    await home.idle()

    assert max(waiting) <= 10
    assert [word for part in chat.calls[1:] for word in part.text.split()] == [*words, "next"]


async def test_immediate_failure_is_not_retried_at_once(sending: Callable[[Chat], Sending]) -> None:
    rendered: list[str] = []

    def broken(text: str) -> NoReturn:
        rendered.append(text)
        raise ValueError(text)

    chat = Chat(Capabilities(length=100, repeat="keyed", render=broken, measure=lambda _: 1))
    home = sending(chat)
    paused: asyncio.Queue[tuple[float, int]] = asyncio.Queue()
    go_on = asyncio.Semaphore(0)

    async def wait(seconds: float) -> None:
        paused.put_nowait((seconds, len(rendered)))
        await go_on.acquire()

    home.meanwhile = wait
    await home.say("one")
    async with asyncio.timeout(20):
        for tries in (1, 2, 3):
            assert await paused.get() == (60, tries)
            go_on.release()


async def test_attempt_that_cannot_be_recorded_is_not_repeated_at_once(
    sending: Callable[[Chat], Sending], outage: Outage
) -> None:
    chat = Chat(able("keyed"))
    chat.faults = [RetryLater("slow down", seconds=30)]
    home = sending(chat)
    pauses: list[float] = []

    with ExitStack() as away:

        async def meanwhile(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 1:  # its turn comes, and then the sent state cannot be stored
                away.enter_context(outage())
            elif len(pauses) == 2:
                away.close()

        home.meanwhile = meanwhile
        await home.say("one")
        found = await home.idle()

    assert pauses[0] > 20
    assert pauses[1] == 1.0
    assert [(row.state, row.tries) for row in found] == [("sent", 2)]
    assert len(chat.calls) == 2


async def test_zero_retry_time_of_platform_is_extended(
    sending: Callable[[Chat], Sending],
) -> None:
    chat = Chat(able("keyed"))
    chat.faults = [RetryLater("try again", seconds=0) for _ in range(5)]
    home = sending(chat)
    begun = home.now

    await home.say("one")
    (row,) = await home.idle()

    assert (row.state, row.tries) == ("sent", 6)
    assert home.now - begun > timedelta(seconds=0.25 * (1 + 2 + 4 + 8 + 16))


async def test_endless_retry_time_of_platform_is_bounded(sending: Callable[[Chat], Sending]) -> None:
    chat = Chat(able("keyed"))
    chat.faults = [RetryLater("slow down", seconds=seconds) for seconds in (inf, nan)]
    home = sending(chat)

    await home.say("one")
    (row,) = await home.idle()

    assert (row.state, row.tries, row.unsure) == ("sent", 3, 0)


@pytest.mark.parametrize("part", ["measure", "render"], ids=["splitting", "rendering"])
async def test_costly_texts_leave_default_threads_to_other_work(
    sending: Callable[[Chat], Sending], part: str
) -> None:
    begun, ended = threading.Event(), threading.Event()
    usual = able("keyed")

    def take_long(text: str) -> Any:
        begun.set()
        ended.wait(60)
        return getattr(usual, part)(text)

    box = sending(Chat(replace(usual, **{part: take_long})))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    await box.say("[" * 90)
    with ThreadPoolExecutor(1) as waiting:
        await loop.run_in_executor(waiting, begun.wait, 60)

    try:
        assert await asyncio.wait_for(asyncio.to_thread(int, "42"), 20) == 42
    finally:
        ended.set()
    assert [row.state for row in await box.idle()] == ["sent"]


async def test_attempts_are_measured_by_outcome(sending: Callable[[Chat], Sending]) -> None:
    chat = Chat(able("keyed"))
    chat.faults = [RetryLater("try again") for _ in range(2)]
    box = sending(chat)
    await box.say("one")
    await box.idle()
    attempts = box.measurements.durations["delivery"]
    counts = {labels: histogram.buckets()[-1] for labels, histogram in attempts.items()}
    assert counts == {("home", "failed"): ("+Inf", 2), ("home", "ok"): ("+Inf", 1)}
