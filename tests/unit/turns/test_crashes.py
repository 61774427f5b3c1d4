"""A poisonous message is found out by running alone, and its neighbours live."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from torana.errors import ModelFailed
from torana.messages import Inbound, Turn

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


async def die(boot: Boot, times: int, *running: str) -> None:
    """Let the gateway come up and die, with these turns running."""
    for _ in range(times):
        gateway = await boot(obedient=True)
        await gateway.agent.until(*running)
        await gateway.crash()


async def accepted(boot: Boot, message: Message, *contents: str) -> list[Turn]:
    """Messages taken in by a gateway that dies over them at once, each in a session of its own."""
    gateway = await boot(obedient=True)
    turns = [await gateway.turns.accept(message(content, channel=content)) for content in contents]
    await gateway.agent.until(*contents)
    await gateway.crash()
    return turns


async def test_after_one_death_all_run_again_together(boot: Boot, message: Message) -> None:
    turns = await accepted(boot, message, "a", "b")

    gateway = await boot(obedient=True)
    await gateway.agent.until("a", "b")

    assert [(await gateway.turns.get("gateway", turn.id)).crashes for turn in turns] == [1, 1]


async def test_after_two_deaths_each_runs_alone_and_what_is_new_waits(boot: Boot, message: Message) -> None:
    a, b = await accepted(boot, message, "a", "b")
    await die(boot, 1, "a", "b")
    gateway = await boot(obedient=True)
    (first,) = await one_running(gateway)
    new = await gateway.turns.accept(message("new", channel="new"))
    behind = await gateway.turns.accept(message("behind", channel=first))
    assert (new.state, behind.state) == ("queued", "queued")
    for turn in (new, behind):
        assert (await anext(gateway.turns.events(turn))).type == "turn.accepted"

    gateway.agent.end(first)
    (second,) = await one_running(gateway)
    assert {first, second} == {"a", "b"}
    assert (await gateway.turns.get("gateway", behind.id)).state == "queued"
    gateway.agent.end(second)
    await gateway.agent.until("new", "behind")
    for content in ("new", "behind"):
        gateway.agent.end(content)

    assert [(await gateway.turns.ended(turn)).reply for turn in (a, b, new, behind)] == ["done"] * 4


async def test_who_settles_a_step_runs_on_while_the_next_one_is_tried(boot: Boot, message: Message) -> None:
    await accepted(boot, message, "a", "b")
    await die(boot, 1, "a", "b")
    gateway = await boot(obedient=True)
    (first,) = await one_running(gateway)

    await gateway.agent.settle(first)
    await gateway.agent.until("a", "b")
    (second,) = {"a", "b"} - {first}
    new = await gateway.turns.accept(message("new", channel="new"))
    assert new.state == "queued"
    await gateway.agent.settle(second)

    await gateway.agent.until("a", "b", "new")


async def test_who_dies_alone_too_often_is_given_up_and_the_others_are_answered(
    boot: Boot, message: Message
) -> None:
    bad, good = await accepted(boot, message, "bad", "good")
    await die(boot, 1, "bad", "good")
    for _ in range(8):  # wherever the poison is in the row
        gateway = await boot(obedient=True, max_crashes=3)
        ended = [turn for turn in (bad, good) if (await gateway.turns.get("gateway", turn.id)).ended]
        if bad in ended:
            break
        (alone,) = await one_running(gateway)
        if alone == "bad":
            await gateway.crash()
        else:
            gateway.agent.end("good")
            await gateway.agent.until("bad")
            await gateway.crash()
    gateway = await boot(obedient=True)
    if not (await gateway.turns.get("gateway", good.id)).ended:
        await gateway.agent.until("good")
        gateway.agent.end("good")

    failed = await gateway.turns.ended(bad)
    assert failed.failure is not None
    assert (failed.state, failed.failure.code, failed.crashes) == ("failed", "crashed_repeatedly", 5)
    assert failed.attempt == 5
    assert (await gateway.turns.ended(good)).state == "completed"
    again = await gateway.turns.retry("gateway", bad.id)
    await gateway.agent.until("bad")
    gateway.agent.end("bad", "after all")
    ended = await gateway.turns.ended(again)
    assert (ended.reply, ended.crashes) == ("after all", 0)


async def test_the_one_who_is_given_up_lets_its_session_go_on(boot: Boot, message: Message) -> None:
    (bad,) = await accepted(boot, message, "bad")
    gateway = await boot(obedient=True)
    behind = await gateway.turns.accept(message("behind", channel="bad"))
    await gateway.agent.until("bad")
    await gateway.crash()
    await die(boot, 3, "bad")

    gateway = await boot(obedient=True)
    failed = await gateway.turns.ended(bad)
    await gateway.agent.until("behind")
    gateway.agent.end("behind")

    assert failed.state == "failed"
    assert [event.type for event in await gateway.watch(bad)] == ["turn.resumed", "turn.failed"]
    assert (await gateway.turns.ended(behind)).state == "completed"


async def test_a_suspect_that_is_cancelled_before_its_turn_comes_never_runs(
    boot: Boot, message: Message
) -> None:
    turns = {turn.content: turn for turn in await accepted(boot, message, "a", "b")}
    await die(boot, 1, "a", "b")
    gateway = await boot(obedient=True)
    (first,) = await one_running(gateway)
    (second,) = {"a", "b"} - {first}

    cancelled = await gateway.turns.cancel("gateway", turns[second].id)
    new = await gateway.turns.accept(message("new", channel="new"))
    gateway.agent.end(first)
    await gateway.agent.until("new")

    assert cancelled.state == "cancelled"
    assert (await gateway.turns.get("gateway", cancelled.id)).state == "cancelled"
    assert (await gateway.turns.get("gateway", new.id)).state == "running"


async def test_a_suspect_that_fails_or_is_cancelled_while_alone_lets_the_others_go_on(
    boot: Boot, message: Message
) -> None:
    turns = {turn.content: turn for turn in await accepted(boot, message, "a", "b", "c")}
    await die(boot, 1, "a", "b", "c")
    gateway = await boot(obedient=True)
    (first,) = await one_running(gateway)
    gateway.agent.end(first, ModelFailed())
    await gateway.turns.ended(turns[first])
    (second,) = await one_running(gateway)
    await gateway.turns.cancel("gateway", turns[second].id)
    (third,) = await one_running(gateway)
    gateway.agent.end(third)
    await gateway.turns.ended(turns[third])
    new = await gateway.turns.accept(message("new", channel="new"))

    await gateway.agent.until("new")
    assert (await gateway.turns.get("gateway", new.id)).state == "running"
    assert {first, second, third} == {"a", "b", "c"}


async def test_a_death_after_a_settled_step_is_not_the_turns_fault(boot: Boot, message: Message) -> None:
    (turn,) = await accepted(boot, message, "a")
    gateway = await boot(obedient=True)
    await gateway.agent.until("a")
    await gateway.agent.settle("a")
    await gateway.crash()

    gateway = await boot(obedient=True)

    assert (await gateway.turns.get("gateway", turn.id)).crashes == 1
    await gateway.agent.until("a")
    await gateway.crash()
    gateway = await boot(obedient=True)
    assert (await gateway.turns.get("gateway", turn.id)).crashes == 2


async def test_a_drain_is_nobodys_fault(boot: Boot, message: Message) -> None:
    (turn,) = await accepted(boot, message, "a")
    for _ in range(5):
        gateway = await boot(obedient=True)
        await gateway.agent.until("a")
        await gateway.turns.stop(grace=0)
        gateway.database.close()

    gateway = await boot(obedient=True)
    await gateway.agent.until("a")
    found = await gateway.turns.get("gateway", turn.id)

    assert (found.crashes, found.attempt) == (1, 7)


async def test_who_waits_is_not_blamed_for_a_death(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("first"))
    queued = await gateway.turns.accept(message("second"))
    await gateway.agent.until("first")
    await gateway.crash()

    gateway = await boot(obedient=True)

    assert (await gateway.turns.get("gateway", queued.id)).crashes == 0


@pytest.mark.parametrize(("hours", "state"), [(23, "running"), (25, "failed")])
async def test_what_waited_for_more_than_a_day_is_not_acted_on(
    boot: Boot, message: Message, hours: int, state: str
) -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    gateway = await boot(obedient=True, clock=lambda: now)
    begun = await gateway.turns.accept(message("begun"))
    waited = await gateway.turns.accept(message("waited"))
    await gateway.agent.until("begun")
    await gateway.crash()

    gateway = await boot(obedient=True, clock=lambda: now + timedelta(hours=hours))
    await gateway.agent.until("begun")
    gateway.agent.end("begun")
    assert (await gateway.turns.ended(begun)).state == "completed"
    if state == "running":
        await gateway.agent.until("waited")
    found = await gateway.turns.get("gateway", waited.id)

    assert found.state == state
    assert (found.failure and found.failure.code) == (None if state == "running" else "expired")


async def test_what_expired_and_is_retried_does_not_expire_while_it_waits_again(
    boot: Boot, message: Message
) -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    gateway = await boot(obedient=True, clock=lambda: now)
    for content in ("begun", "waited"):
        waited = await gateway.turns.accept(message(content))
    await gateway.agent.until("begun")
    await gateway.crash()
    later = now + timedelta(days=2)
    gateway = await boot(obedient=True, clock=lambda: later)
    assert (await gateway.turns.ended(waited)).failure.code == "expired"
    told = await gateway.watch(waited)
    await gateway.turns.retry("gateway", waited.id)
    await gateway.turns.stop(grace=0)
    gateway.database.close()

    gateway = await boot(obedient=True, clock=lambda: later)
    for content in ("begun", "waited"):
        await gateway.agent.until(content)
        gateway.agent.end(content)

    assert (await gateway.turns.ended(waited)).state == "completed"
    ids = [event.id for event in [*told, *await gateway.watch(waited)]]
    assert len(set(ids)) == len(ids)  # who follows its events misses none of the new ones


async def one_running(gateway: Any) -> list[str]:
    """The turns that run, once one does and any other had the time to."""
    for _ in range(5):  # as many looks into the store as another one would need to be started
        await gateway.look()
    while not gateway.agent.running:
        await gateway.look()
    return list(gateway.agent.running)
