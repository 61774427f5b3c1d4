from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from torana.workers import fair_slots
from torana.workers.fair_slots import FairSlots, PacedSlots


class Calls:
    """Calls that hold a slot until the test ends them; ``begun`` lists them in the order of their start."""

    def __init__(self, slots: FairSlots) -> None:
        self.begun: list[str] = []
        self._slots = slots
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str) -> None:
        """Start calls; a name is the user's letter and a number."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name))
            await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await asyncio.sleep(0)

    async def _call(self, name: str) -> None:
        async with self._slots.slot(name[0]):
            self.begun.append(name)
            await self._ends[name].wait()


async def test_calls_of_one_user_run_one_after_the_other() -> None:
    calls = Calls(FairSlots(total=2, per_user=1))
    await calls.start("a1", "a2", "a3")
    assert calls.begun == ["a1"]
    await calls.end("a1")
    assert calls.begun == ["a1", "a2"]
    await calls.end("a2")
    await calls.end("a3")


async def test_many_calls_of_a_user_do_not_delay_another_user() -> None:
    calls = Calls(FairSlots(total=2, per_user=1))
    await calls.start(*(f"a{number}" for number in range(40)), "b1")
    assert calls.begun == ["a0", "b1"]
    await calls.end("b1")
    for number in range(40):
        await calls.end(f"a{number}")


async def test_waiting_users_take_turns() -> None:
    calls = Calls(FairSlots(total=1, per_user=1))
    await calls.start("a1", "a2", "a3", "b1", "b2", "c1")
    for name in ("a1", "b1", "c1", "a2", "b2", "a3"):
        await calls.end(name)
    assert calls.begun == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_kept_slots_are_for_users_who_hold_none() -> None:
    calls = Calls(FairSlots(total=4, per_user=4, kept=2))
    await calls.start("a1", "a2", "a3", "b1", "b2", "c1", "d1")
    assert calls.begun == ["a1", "a2", "b1", "c1"]
    await calls.end("c1")
    assert calls.begun[4:] == ["d1"]
    for name in ("d1", "b1", "a1"):
        await calls.end(name)
    assert calls.begun[5:] == ["b2"]
    for name in ("a2", "a3", "b2"):
        await calls.end(name)


@pytest.mark.parametrize("cancelled", ["a2", "b1"])
async def test_cancelled_call_takes_no_slot(cancelled: str) -> None:
    calls = Calls(FairSlots(total=1, per_user=1))
    await calls.start("a1", "a2", "b1")
    await calls.cancel(cancelled)
    await calls.end("a1")
    (other,) = {"a2", "b1"} - {cancelled}
    await calls.end(other)
    assert calls.begun == ["a1", other]


async def test_call_cancelled_while_it_gets_a_slot_releases_it() -> None:
    slots = FairSlots(total=1, per_user=1)
    await slots.acquire("a")
    waiting = asyncio.create_task(slots.acquire("b"))
    await asyncio.sleep(0)
    slots.release("a")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await _at_once(slots.acquire, "c")


async def _at_once(act: Callable[[str], Awaitable[None]], user: str) -> None:
    async with asyncio.timeout(0):
        await act(user)


async def test_paced_slot_stays_taken_for_a_multiple_of_the_time_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(fair_slots.time, "perf_counter", lambda: now)
    monkeypatch.setattr(fair_slots.asyncio, "sleep", pause)
    for short in (0.0, 0.5):
        slots = PacedSlots(total=1, short=short)
        for seconds in (0.25, 10.0):
            async with slots.slot("a"):
                now += seconds
        async with slots.slot("a"):  # after the pauses
            pass

    assert pauses == [0.5, 2.0, 2.0]
