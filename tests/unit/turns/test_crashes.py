"""A message that crashes the gateway is isolated and fails; other messages are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from torana.errors import ModelFailed
from torana.limits.budgets import Budgets, Estimate
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.limits.request_tokens import RequestTokens
from torana.messages import Inbound, Turn, Usage

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


async def die(boot: Boot, times: int, *running: str) -> None:
    """Start and crash the gateway this number of times while these turns run."""
    for _ in range(times):
        gateway = await boot(obedient=True)
        await gateway.agent.until(*running)
        await gateway.crash()


async def run_until_crash(boot: Boot, message: Message, *contents: str) -> list[Turn]:
    """Accept messages, each in its own session, and crash the gateway while they run."""
    gateway = await boot(obedient=True)
    turns = [await gateway.turns.accept(message(content, channel=content)) for content in contents]
    await gateway.agent.until(*contents)
    await gateway.crash()
    return turns


async def test_all_turns_resume_together_after_one_crash(boot: Boot, message: Message) -> None:
    turns = await run_until_crash(boot, message, "a", "b")

    gateway = await boot(obedient=True)
    await gateway.agent.until("a", "b")

    assert [(await gateway.turns.reader.get("gateway", turn.id)).crashes for turn in turns] == [1, 1]


async def test_turns_run_alone_and_new_turns_wait_after_two_crashes(boot: Boot, message: Message) -> None:
    a, b = await run_until_crash(boot, message, "a", "b")
    await die(boot, 1, "a", "b")
    gateway = await boot(obedient=True)
    (first,) = await one_running(gateway)
    new = await gateway.turns.accept(message("new", channel="new"))
    behind = await gateway.turns.accept(message("behind", channel=first))
    assert (new.state, behind.state) == ("queued", "queued")
    for turn in (new, behind):
        assert (await anext(gateway.turns.reader.events(turn))).type == "turn.accepted"

    gateway.agent.end(first)
    (second,) = await one_running(gateway)
    assert {first, second} == {"a", "b"}
    assert (await gateway.turns.reader.get("gateway", behind.id)).state == "queued"
    gateway.agent.end(second)
    await gateway.agent.until("new", "behind")
    for content in ("new", "behind"):
        gateway.agent.end(content)

    assert [(await gateway.turns.reader.wait_for_end(turn)).reply for turn in (a, b, new, behind)] == [
        "done"
    ] * 4


async def test_isolated_turn_continues_beside_the_next_after_settling_a_step(
    boot: Boot, message: Message
) -> None:
    await run_until_crash(boot, message, "a", "b")
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


async def test_turn_that_crashes_repeatedly_fails_and_others_complete(boot: Boot, message: Message) -> None:
    bad, good = await run_until_crash(boot, message, "bad", "good")
    await die(boot, 1, "bad", "good")
    for _ in range(8):  # wherever the crashing message is in the order
        gateway = await boot(obedient=True, max_crashes=3)
        ended = [turn for turn in (bad, good) if (await gateway.turns.reader.get("gateway", turn.id)).has_ended]
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
    if not (await gateway.turns.reader.get("gateway", good.id)).has_ended:
        await gateway.agent.until("good")
        gateway.agent.end("good")

    failed = await gateway.turns.reader.wait_for_end(bad)
    assert failed.failure is not None
    assert (failed.state, failed.failure.code, failed.crashes) == ("failed", "crashed_repeatedly", 5)
    assert failed.attempt == 5
    assert (await gateway.turns.reader.wait_for_end(good)).state == "completed"
    again = await gateway.turns.retry("gateway", bad.id)
    await gateway.agent.until("bad")
    gateway.agent.end("bad", "after all")
    ended = await gateway.turns.reader.wait_for_end(again)
    assert (ended.reply, ended.crashes) == ("after all", 0)


async def test_session_continues_after_a_turn_failed_from_crashes(boot: Boot, message: Message) -> None:
    (bad,) = await run_until_crash(boot, message, "bad")
    gateway = await boot(obedient=True)
    behind = await gateway.turns.accept(message("behind", channel="bad"))
    await gateway.agent.until("bad")
    await gateway.crash()
    await die(boot, 3, "bad")

    gateway = await boot(obedient=True)
    failed = await gateway.turns.reader.wait_for_end(bad)
    await gateway.agent.until("behind")
    gateway.agent.end("behind")

    assert failed.state == "failed"
    assert [event.type for event in await gateway.watch(bad)] == ["turn.resumed", "turn.failed"]
    assert (await gateway.turns.reader.wait_for_end(behind)).state == "completed"


async def test_suspected_turn_cancelled_while_waiting_never_runs(boot: Boot, message: Message) -> None:
    turns = {turn.content: turn for turn in await run_until_crash(boot, message, "a", "b")}
    await die(boot, 1, "a", "b")
    gateway = await boot(obedient=True)
    (first,) = await one_running(gateway)
    (second,) = {"a", "b"} - {first}

    cancelled = await gateway.turns.cancel("gateway", turns[second].id)
    new = await gateway.turns.accept(message("new", channel="new"))
    gateway.agent.end(first)
    await gateway.agent.until("new")

    assert cancelled.state == "cancelled"
    assert (await gateway.turns.reader.get("gateway", cancelled.id)).state == "cancelled"
    assert (await gateway.turns.reader.get("gateway", new.id)).state == "running"


async def test_end_of_an_isolated_turn_starts_the_next_one(boot: Boot, message: Message) -> None:
    turns = {turn.content: turn for turn in await run_until_crash(boot, message, "a", "b", "c")}
    await die(boot, 1, "a", "b", "c")
    gateway = await boot(obedient=True)
    (first,) = await one_running(gateway)
    gateway.agent.end(first, ModelFailed())
    await gateway.turns.reader.wait_for_end(turns[first])
    (second,) = await one_running(gateway)
    await gateway.turns.cancel("gateway", turns[second].id)
    (third,) = await one_running(gateway)
    gateway.agent.end(third)
    await gateway.turns.reader.wait_for_end(turns[third])
    new = await gateway.turns.accept(message("new", channel="new"))

    await gateway.agent.until("new")
    assert (await gateway.turns.reader.get("gateway", new.id)).state == "running"
    assert {first, second, third} == {"a", "b", "c"}


async def test_crash_after_a_settled_step_is_not_counted(boot: Boot, message: Message) -> None:
    (turn,) = await run_until_crash(boot, message, "a")
    gateway = await boot(obedient=True)
    await gateway.agent.until("a")
    await gateway.agent.settle("a")
    await gateway.crash()

    gateway = await boot(obedient=True)

    assert (await gateway.turns.reader.get("gateway", turn.id)).crashes == 1
    await gateway.agent.until("a")
    await gateway.crash()
    gateway = await boot(obedient=True)
    assert (await gateway.turns.reader.get("gateway", turn.id)).crashes == 2


async def test_graceful_stop_is_not_counted_as_a_crash(boot: Boot, message: Message) -> None:
    (turn,) = await run_until_crash(boot, message, "a")
    for _ in range(5):
        gateway = await boot(obedient=True)
        await gateway.agent.until("a")
        await gateway.turns.stop(grace=0)
        gateway.database.close()

    gateway = await boot(obedient=True)
    await gateway.agent.until("a")
    found = await gateway.turns.reader.get("gateway", turn.id)

    assert (found.crashes, found.attempt) == (1, 7)


async def test_crash_is_not_counted_for_queued_turns(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("first"))
    queued = await gateway.turns.accept(message("second"))
    await gateway.agent.until("first")
    await gateway.crash()

    gateway = await boot(obedient=True)

    assert (await gateway.turns.reader.get("gateway", queued.id)).crashes == 0


@pytest.mark.parametrize(("hours", "state"), [(23, "running"), (25, "failed")])
async def test_queued_turn_expires_after_a_day(boot: Boot, message: Message, hours: int, state: str) -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    gateway = await boot(obedient=True, clock=lambda: now)
    begun = await gateway.turns.accept(message("begun"))
    waited = await gateway.turns.accept(message("waited"))
    await gateway.agent.until("begun")
    await gateway.crash()

    gateway = await boot(obedient=True, clock=lambda: now + timedelta(hours=hours))
    await gateway.agent.until("begun")
    gateway.agent.end("begun")
    assert (await gateway.turns.reader.wait_for_end(begun)).state == "completed"
    if state == "running":
        await gateway.agent.until("waited")
    found = await gateway.turns.reader.get("gateway", waited.id)

    assert found.state == state
    assert (found.failure and found.failure.code) == (None if state == "running" else "expired")


async def test_retried_turn_does_not_expire_again_while_queued(boot: Boot, message: Message) -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    gateway = await boot(obedient=True, clock=lambda: now)
    for content in ("begun", "waited"):
        waited = await gateway.turns.accept(message(content))
    await gateway.agent.until("begun")
    await gateway.crash()
    later = now + timedelta(days=2)
    gateway = await boot(obedient=True, clock=lambda: later)
    assert (await gateway.turns.reader.wait_for_end(waited)).failure.code == "expired"
    told = await gateway.watch(waited)
    await gateway.turns.retry("gateway", waited.id)
    await gateway.turns.stop(grace=0)
    gateway.database.close()

    gateway = await boot(obedient=True, clock=lambda: later)
    for content in ("begun", "waited"):
        await gateway.agent.until(content)
        gateway.agent.end(content)

    assert (await gateway.turns.reader.wait_for_end(waited)).state == "completed"
    ids = [event.id for event in [*told, *await gateway.watch(waited)]]
    assert len(set(ids)) == len(ids)  # a client that follows the events misses none of the new ones


async def one_running(gateway: Any) -> list[str]:
    """Wait until a turn runs and any other had time to start; return the running turns."""
    for _ in range(5):  # as many database reads as another turn would need to start
        await gateway.look()
    while not gateway.agent.running:
        await gateway.look()
    return list(gateway.agent.running)


async def test_crash_charges_the_model_request_that_was_sent_and_no_turn_that_waits_for_a_slot(
    boot: Boot, message: Message, clock: Callable[[], datetime]
) -> None:
    limits = Limits(per_user=[parse_limit("10000 tokens/day")])
    budgets = Budgets(limits=limits, prices=Prices(), estimate=Estimate(output=100, overhead=100), clock=clock)
    gateway = await boot(obedient=True, budgets=budgets, concurrency=1)
    asking, waiting = [
        await gateway.turns.accept(message(content, channel=content, user="ana")) for content in ("a", "b")
    ]
    await gateway.agent.until("a")
    await gateway.agent.journals["a"].hold(RequestTokens(likely=200, most=500))
    for _ in range(2):
        await gateway.crash()
        gateway = await boot(obedient=True, budgets=budgets, concurrency=0)

    # The second crash interrupted no request.
    charged = [(await gateway.turns.reader.get("gateway", turn.id)).usage for turn in (asking, waiting)]
    assert charged == [Usage(input_tokens=500, output_tokens=100), Usage()]
