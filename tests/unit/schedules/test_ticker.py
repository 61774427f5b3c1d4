"""Schedules run once each, on time or late, whatever happens to the clock and the gateway."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from tests.standins.clock import Clock
from tests.unit.schedules.conftest import World

from torana.errors import ModelFailed, NotFound, ScheduleInvalid, StoreUnavailable
from torana.limits.budgets import Budgets
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.messages import GATEWAY_OWNER, Inbound
from torana.schedules.ticker import AT_ONCE, FAILURES, PER_USER
from torana.sessions import Sessions
from torana.store.engine.tables import schedules, turns
from torana.store.rows import schedules as rows
from torana.turns import Queue, SessionChanges

Boot = Callable[..., Awaitable[World]]


def limited(hand: Clock, *limits: str) -> Budgets:
    return Budgets(limits=Limits(overall=[parse_limit(text) for text in limits]), prices=Prices(), clock=hand)


async def test_reminder_is_sent_once_without_a_model(world: World, hand: Clock) -> None:
    made = await world.make(at="tomorrow at 9", user="ana")
    await world.settle()
    assert await world.fired() == []

    hand.now = datetime(2026, 3, 3, 8, 0, 1, tzinfo=UTC)
    await world.settle()
    await world.settle()

    (turn,) = await world.fired()
    assert (turn.state, turn.reply, turn.user, turn.channel) == (
        "completed",
        "Reminder: call Ana",
        "ana",
        "home",
    )
    assert (turn.principal, turn.model) == (f"schedule:{made.id}", "torana")
    assert world.agent.asked == []
    ended = await world.get(made)
    assert (ended.state, ended.due_at, ended.turn_id) == ("ended", None, turn.id)


async def test_reminder_is_part_of_the_history(world: World, hand: Clock) -> None:
    await world.make(at="in 10 minutes")
    hand.on(minutes=10)
    await world.settle()
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="done", channel="home")
    turn = await world.turns.reader.wait_for_end(await world.turns.accept(said))

    window = await Sessions(database=world.database, history_messages=40).window(turn)
    assert [str(getattr(part, "content", "")) for message in window.messages for part in message.parts] == [
        "A reminder is due: call Ana",
        "Reminder: call Ana",
    ]


async def test_task_is_sent_to_the_agent(world: World, hand: Clock) -> None:
    made = await world.make("how is the weather", kind="task", rule="every day at 10:00", token="tok_1")
    for day in (2, 3):
        hand.now = datetime(2026, 3, day, 9, 0, tzinfo=UTC)
        await world.settle()

    assert world.agent.asked == ["how is the weather"]  # it was created at half past ten in Berlin
    (turn,) = await world.fired()
    assert (turn.reply, turn.token) == ("done", "tok_1")
    assert (await world.get(made)).due_at == datetime(2026, 3, 4, 9, 0, tzinfo=UTC)


async def test_control_word_in_a_schedule_goes_to_the_agent(world: World, hand: Clock) -> None:
    made = await world.make("stop", kind="task", at="in 10 minutes")
    await world.database.run(lambda c: c.exec_driver_sql("UPDATE schedules SET text = '/stop'").rowcount)
    hand.on(minutes=10)
    await world.settle()
    assert world.agent.asked == ["/stop"]
    assert (await world.get(made)).state == "ended"


async def test_schedules_run_once_per_wall_time_across_clock_jumps(world: World, hand: Clock) -> None:
    await world.make("half past two", rule="30 2 * * *")
    await world.make("every half hour", rule="*/30 * * * *", channel="other")
    for month, day in ((3, 28), (10, 24)):  # the clock jumps on the following day
        hand.now = datetime(2026, month, day, 12, 0, tzinfo=UTC)
        await world.settle()
        before = Counter(turn.channel for turn in await world.fired())
        for _ in range(48 * 4):
            hand.on(minutes=15)
            await world.settle()
        count = Counter(turn.channel for turn in await world.fired()) - before
        assert count == {"home": 2, "other": 96}


async def test_missed_runs_happen_once_or_are_skipped_after_a_long_downtime(boot: Boot, hand: Clock) -> None:
    first = await boot()
    once = await first.make("once", at="2026-03-03 09:00", channel="once")
    again = await first.make("again", rule="every day at 9", channel="again")
    task = await first.make("work", rule="every day at 9", channel="task", kind="task")
    skipped = await first.make("skip", rule="every day at 9", missed="skip", channel="skip")
    hand.now = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)

    second = await boot()
    await second.settle()
    await second.settle()

    said = {turn.channel: turn.reply for turn in await second.fired()}
    due = "which was due on Tuesday, 3 March 2026 at 09:00 (Europe/Berlin)"
    assert said == {"once": f"Reminder, {due}: once", "again": f"Reminder, {due}: again", "task": "done"}
    assert second.agent.asked == [
        "work\n\n[This task was due on Tuesday, 3 March 2026 at 09:00 (Europe/Berlin).]"
    ]
    assert (await second.get(once)).state == "ended"
    for schedule in (again, task, skipped):
        assert (await second.get(schedule)).due_at == datetime(2026, 3, 11, 8, 0, tzinfo=UTC)
    assert "the gateway was not running" in ((await second.get(skipped)).reason or "")
    hand.now = datetime(2026, 3, 11, 8, 0, tzinfo=UTC)
    await second.settle()
    assert Counter(turn.channel for turn in await second.fired()) == {
        "once": 1,
        "again": 2,
        "task": 2,
        "skip": 1,
    }


async def test_short_downtime_misses_no_run(boot: Boot, hand: Clock) -> None:
    await (await boot()).make("skip", rule="every day at 11:00", missed="skip")
    hand.now = datetime(2026, 3, 2, 10, 4, tzinfo=UTC)
    second = await boot()
    await second.settle()
    assert [turn.reply for turn in await second.fired()] == ["Reminder: skip"]


async def test_machine_that_slept_skips_missed_runs(world: World, hand: Clock) -> None:
    skipped = await world.make("skip", rule="every day at 11:00", missed="skip")
    await world.settle()
    hand.now = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
    await world.settle()
    assert await world.fired() == []
    assert (await world.get(skipped)).due_at == datetime(2026, 3, 3, 10, 0, tzinfo=UTC)


async def test_clock_set_back_runs_nothing_twice(world: World, hand: Clock) -> None:
    await world.make(rule="every hour")
    for hours in (1, -0.5, 0.25, 0.25, -3, 2, 1, 1):
        hand.on(hours=hours)
        await world.settle()
    # The clock runs from 10:30 to 11:30, and twice back and forward to 11:30 again.
    assert [turn.created_at.hour for turn in await world.fired()] == [10, 11]


async def test_schedule_recovers_after_the_clock_was_years_ahead(world: World, hand: Clock) -> None:
    made = await world.make(rule="every day at 12:00")
    right, hand.now = hand.now, datetime(2034, 1, 1, tzinfo=UTC)
    await world.settle()
    assert len(await world.fired()) == 1  # one run for all that was due by that clock
    hand.now = right
    await world.settle()

    # The wrong clock already covered the 2nd of March; the 3rd is next.
    assert (await world.get(made)).due_at == datetime(2026, 3, 3, 11, 0, tzinfo=UTC)
    for day in (2, 3, 4):
        hand.now = datetime(2026, 3, day, 11, 0, tzinfo=UTC)
        await world.settle()
    assert len(await world.fired()) == 3


async def test_schedule_that_ran_repeatedly_under_a_fast_clock_recovers(world: World, hand: Clock) -> None:
    made = await world.make(rule="every day at 12:00")
    right = hand.now
    for day in (1, 2, 3):
        hand.now = datetime(2034, 1, day, 12, 0, tzinfo=UTC)
        await world.settle()
    assert len(await world.fired()) == 3
    hand.now = right
    await world.settle()

    # After several runs, the gateway no longer knows that the first was covered.
    assert (await world.get(made)).due_at == datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
    for day in (2, 3):
        hand.now = datetime(2026, 3, day, 11, 0, tzinfo=UTC)
        await world.settle()
        await world.settle()
    assert len(await world.fired()) == 5


async def test_schedule_resumed_under_a_fast_clock_recovers(world: World, hand: Clock) -> None:
    made = await world.make(rule="every day at 12:00")
    await world.schedules.pause(GATEWAY_OWNER, made.id)
    await world.settle()
    right, hand.now = hand.now, datetime(2034, 1, 1, tzinfo=UTC)
    await world.schedules.resume(GATEWAY_OWNER, made.id)
    await world.settle()
    hand.now = right
    await world.settle()

    assert (await world.get(made)).due_at == datetime(2026, 3, 2, 11, 0, tzinfo=UTC)


async def test_schedule_that_is_due_in_months_is_unchanged(boot: Boot, hand: Clock) -> None:
    made = await (await boot()).make(rule="every year on 24 December at 9")
    second = await boot()
    await second.settle()
    assert await second.get(made) == made


async def test_schedule_recovers_after_a_failed_write(
    world: World, hand: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.make(rule="every day at 12:00")
    right, hand.now = hand.now, datetime(2034, 1, 1, tzinfo=UTC)
    await world.settle()
    hand.now = right

    async def run(_: object) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as broken:
        broken.setattr(world.database, "run", run)
        with pytest.raises(StoreUnavailable):
            await world.ticker.run_due()
    hand.on(seconds=30)
    await world.settle()

    assert (await world.get(made)).due_at == datetime(2026, 3, 3, 11, 0, tzinfo=UTC)


async def test_schedule_created_under_a_fast_clock_recovers_or_warns(boot: Boot, hand: Clock) -> None:
    right, hand.now = hand.now, datetime(2034, 1, 1, tzinfo=UTC)
    first = await boot()
    ruled = await first.make(rule="every day at 12:00")
    once = await first.make(at="in 20 minutes")
    hand.now = right
    second = await boot()
    await second.settle()

    assert (await second.get(ruled)).due_at == datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
    wrong = await second.get(once)
    assert (wrong.state, wrong.due_at) == ("active", once.due_at)
    assert wrong.reason == "created while the machine's clock was ahead; its time may be wrong"
    later = await second.make(at="in 20 minutes")
    hand.on(days=1)
    await second.settle()
    assert Counter(turn.principal for turn in await second.fired()) == {ruled.principal: 1, later.principal: 1}


async def test_task_refused_under_a_fast_clock_is_retried(boot: Boot, hand: Clock) -> None:
    first = await boot(queue=Queue(overall=0))
    tasks = [
        await first.make("once", kind="task", at="in 10 minutes"),
        await first.make("again", kind="task", rule="every year on 2 March at 10:40"),
    ]
    right, hand.now = hand.now, datetime(2034, 1, 1, tzinfo=UTC)
    await first.settle()
    assert [(await first.get(task)).tries for task in tasks] == [1, 1]
    hand.now = right
    second = await boot()
    await second.settle()
    assert await second.fired() == []
    hand.on(minutes=10)
    await second.settle()
    assert sorted(turn.content for turn in await second.fired()) == ["again", "once"]


async def test_task_over_budget_is_retried_until_the_next_due_time(boot: Boot, hand: Clock) -> None:
    world = await boot(budgets=limited(hand, "1 messages/day"))
    made = await world.make("work", kind="task", rule="every hour")
    hand.now = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
    await world.settle()
    hand.now = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
    await world.settle()

    waiting = await world.get(made)
    assert (waiting.tries, waiting.try_at) == (1, datetime(2026, 3, 2, 11, 1, tzinfo=UTC))
    assert (waiting.reason or "").startswith("delayed: The limit is 1 message")
    looks = 0
    while (await world.get(made)).tries:
        hand.now = (await world.get(made)).try_at or hand.now
        await world.settle()
        looks += 1
    assert looks == 6  # after 1, 2, 4, 8 and 15 minutes; the next due time comes before the retry after that
    missed = await world.get(made)
    assert missed.due_at == datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
    assert (missed.reason or "").startswith(
        "missed the run that was due on Monday, 2 March 2026 at 12:00 (Europe/Berlin)"
    )
    hand.now = datetime(2026, 3, 3, 0, 0, tzinfo=UTC)
    await world.settle()
    assert (len(await world.fired()), (await world.get(made)).reason) == (2, None)


async def test_one_off_task_is_abandoned_after_a_day_of_refusals(boot: Boot, hand: Clock) -> None:
    world = await boot(queue=Queue(overall=0))
    made = await world.make("work", kind="task", at="in 10 minutes")
    hand.on(minutes=10)
    begun, looks = hand.now, 0
    while (await world.get(made)).state == "active":
        hand.now = (await world.get(made)).try_at or hand.now
        await world.settle()
        looks += 1
    assert looks == 100
    assert (hand.now - begun).days == 1 or (hand.now - begun).total_seconds() > 23 * 3600
    assert "Too many messages wait" in ((await world.get(made)).reason or "")
    assert await world.count() == 0


async def test_reminders_ignore_budgets(boot: Boot, hand: Clock) -> None:
    world = await boot(budgets=limited(hand, "1 messages/day", "1 turns"))
    for number in range(3):
        await world.make(f"{number}", at="in 10 minutes")
    hand.on(minutes=10)
    await world.settle()
    assert [turn.reply for turn in await world.fired()] == [f"Reminder: {number}" for number in range(3)]


async def test_busy_session_queues_tasks_and_sends_reminders(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="long work", channel="home")
    running = await world.turns.accept(said)
    await world.make("task", kind="task", at="in 10 minutes")
    await world.make("tea", at="in 10 minutes")
    hand.on(minutes=10)
    await world.ticker.run_due()

    states = {turn.content: turn.state for turn in await world.fired()}
    assert states == {"task": "queued", "A reminder is due: tea": "completed"}
    world.agent.gate.set()
    await world.wait_for_turns()
    assert (await world.turns.reader.get(GATEWAY_OWNER, running.id)).state == "completed"
    assert world.agent.asked == ["long work", "task"]


async def test_unanswered_task_delays_the_next_run_of_its_schedule(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    made = await world.make("slow", kind="task", rule="every 5 minutes")
    for _ in range(12):
        hand.on(minutes=5)
        await world.ticker.run_due()
    assert len(await world.fired()) == 1
    assert "its last task is not answered yet" in ((await world.get(made)).reason or "")
    world.agent.gate.set()
    await world.wait_for_turns()
    hand.on(minutes=5)
    await world.settle()
    assert len(await world.fired()) == 2


async def test_repeatedly_failing_schedule_is_paused_and_can_be_resumed(world: World, hand: Clock) -> None:
    made = await world.make("work", kind="task", rule="every hour")
    world.agent.outcome = ModelFailed("no such model")
    for _ in range(FAILURES + 3):
        hand.on(hours=1)
        await world.settle()

    paused = await world.get(made)
    assert (len(await world.fired()), paused.state) == (FAILURES, "paused")
    assert paused.reason == "paused: it failed 10 times in a row; the last reason: no such model"
    world.agent.outcome = "done"
    resumed = await world.schedules.resume(GATEWAY_OWNER, made.id)
    assert (resumed.state, resumed.reason) == ("active", None)
    hand.on(hours=1)
    await world.settle()
    hand.on(hours=1)
    await world.settle()
    assert (len(await world.fired()), (await world.get(made)).failures) == (FAILURES + 2, 0)


async def test_schedule_that_cannot_run_is_paused_without_delaying_others(world: World, hand: Clock) -> None:
    odd = await world.make("first", kind="task", at="in 10 minutes")
    await world.make("second", kind="task", at="in 20 minutes")
    # As after a backup was restored on a machine that does not know the zone.
    nowhere = sa.update(schedules).where(schedules.c.id == odd.id).values(timezone="Nowhere/Gone")
    await world.database.run(lambda connection: connection.execute(nowhere))
    hand.on(hours=1)
    await world.settle()

    assert [turn.content.splitlines()[0] for turn in await world.fired()] == ["second"]
    paused = await world.get(odd)
    assert (paused.state, "ZoneInfoNotFoundError" in (paused.reason or "")) == ("paused", True)


async def test_schedule_in_an_unknown_zone_delays_no_others_after_a_restart(boot: Boot, hand: Clock) -> None:
    world = await boot()
    far = await world.make("far", rule="every year on 24 December at 9")
    await world.make("near", at="in 20 minutes")
    # As after a backup was restored on a machine that does not know the zone.
    nowhere = sa.update(schedules).where(schedules.c.id == far.id).values(timezone="Nowhere/Gone")
    await world.database.run(lambda connection: connection.execute(nowhere))
    hand.on(hours=1)
    later = await boot()
    await later.settle()

    assert len(await later.fired()) == 1
    paused = await later.get(far)
    assert (paused.state, paused.reason) == (
        "paused",
        "paused: There is no time zone 'Nowhere/Gone'; name one such as Europe/Vienna.",
    )
    with pytest.raises(ScheduleInvalid, match="There is no time zone"):
        await later.schedules.resume(GATEWAY_OWNER, far.id)


async def test_success_resets_the_failure_count(world: World, hand: Clock) -> None:
    made = await world.make("work", kind="task", rule="every hour")
    for number in range(FAILURES * 2):
        world.agent.outcome = "done" if number == FAILURES - 2 else ModelFailed("no")
        hand.on(hours=1)
        await world.settle()
    assert (await world.get(made)).state == "paused"
    assert len(await world.fired()) == 2 * FAILURES - 1


async def test_runs_of_a_user_are_limited_per_day(boot: Boot, hand: Clock) -> None:
    world = await boot(firings_per_day=3)
    made = await world.make("ana's", rule="every hour", user="ana")
    await world.make("ben's", rule="every hour", user="ben", channel="b")
    for _ in range(5):
        hand.on(hours=1)
        await world.settle()
    assert Counter(turn.user for turn in await world.fired()) == {"ana": 3, "ben": 3}
    assert "TORANA_SCHEDULE_FIRINGS_PER_DAY" in ((await world.get(made)).reason or "")
    hand.on(days=1)
    await world.settle()
    assert Counter(turn.user for turn in await world.fired()) == {"ana": 4, "ben": 4}


async def test_deleting_a_session_deletes_its_schedules(world: World, hand: Clock) -> None:
    here = await world.make(rule="every hour")
    there = await world.make(rule="every hour", channel="there")
    hand.on(hours=1)
    await world.settle()
    sessions = Sessions(database=world.database, history_messages=40)
    changes = SessionChanges(database=world.database, sessions=sessions, turns=world.turns, clock=hand)
    home = next(turn.session_id for turn in await world.fired() if turn.channel == "home")
    await changes.delete(GATEWAY_OWNER, home)

    with pytest.raises(NotFound):
        await world.get(here)
    hand.on(hours=1)
    await world.settle()
    assert [turn.channel for turn in await world.fired()] == ["there", "there"]
    assert (await world.get(there)).state == "active"


async def test_schedule_removed_at_the_last_moment_does_not_run(world: World, hand: Clock) -> None:
    made = await world.make("work", kind="task", at="in 10 minutes")
    hand.on(minutes=10)
    found = await world.database.run(partial(rows.due_tasks, now=hand.now, at_once=5, per_user=5))
    assert [due.schedule.id for due in found] == [made.id]
    look = asyncio.ensure_future(world.ticker.run_due())
    await world.schedules.remove(GATEWAY_OWNER, made.id)
    await look
    await world.wait_for_turns()
    # Depending on the order there is a turn and no schedule, or neither.
    assert await world.count() == len(world.agent.asked) <= 1


async def test_two_tickers_run_each_due_time_once(boot: Boot, hand: Clock) -> None:
    worlds = [await boot(), await boot()]
    for number in range(20):
        kind = "task" if number % 2 else "remind"
        # Each in its own session: queued turns of a session run in the gateway that ran the turn before them.
        await worlds[0].make(f"{number}", at="in 10 minutes", kind=kind, channel=f"c{number}")
    hand.on(minutes=10)
    for _ in range(5):
        await asyncio.gather(*(world.ticker.run_due() for world in worlds))
        for world in worlds:
            await world.wait_for_turns()
    fired = Counter(turn.content for turn in await worlds[0].fired())
    assert (len(fired), set(fired.values())) == (20, {1})


@pytest.mark.parametrize("due", [200, pytest.param(1_000, marks=pytest.mark.long)])
async def test_many_due_schedules_all_run_without_delaying_users(world: World, hand: Clock, due: int) -> None:

    async def make(number: int) -> None:
        kind, user = "task" if number % 5 else "remind", f"user-{number % 40}"
        await world.make(f"{number}", at="2026-03-02 12:00", kind=kind, user=user, channel=f"c{number}")

    await asyncio.gather(*map(make, range(due)))
    hand.now = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
    world.agent.gate.clear()
    while await world.ticker.run_due() == 0:
        pass
    # All reminders are sent, the maximum of tasks runs, and the other tasks have not been accepted.
    fired = await world.fired()
    assert Counter(turn.state for turn in fired) == {"completed": due // 5, "running": AT_ONCE}
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="a person", channel="person")
    person = await world.turns.accept(said)
    while "a person" not in world.agent.asked:
        await world.database.run(lambda _: None)
    world.agent.gate.set()
    await world.wait_for_turns()
    assert (await world.turns.reader.get(GATEWAY_OWNER, person.id)).state == "completed"
    await world.settle()

    fired = await world.fired()
    assert Counter(turn.state for turn in fired) == {"completed": due}
    assert len({turn.channel for turn in fired}) == due


async def test_waiting_session_does_not_delay_other_tasks(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="delete it", channel="home", user="ana")
    asking = await world.turns.accept(said)
    for number in range(AT_ONCE * 2):  # of many users, in one shared session
        await world.make(f"{number}", kind="task", at="in 10 minutes", user=f"user-{number}")
    hand.on(minutes=10)
    while await world.ticker.run_due() == 0:
        pass
    before = Counter(turn.state for turn in await world.fired())
    assert before == {"queued": AT_ONCE}  # they run as soon as the session's turn ends
    await world.make("ben's", kind="task", at="in 10 minutes", user="ben", channel="b")
    hand.on(minutes=10)

    waits = sa.update(turns).where(turns.c.id == asking.id).values(state="waiting")
    await world.database.run(lambda connection: connection.execute(waits))
    while await world.ticker.run_due() == 0:
        pass
    assert {turn.content: turn.state for turn in await world.fired()}["ben's"] == "running"
    assert Counter(turn.channel for turn in await world.fired()) == {"home": AT_ONCE, "b": 1}
    behind = await world.schedules.of_speaker(GATEWAY_OWNER, "user-19", "home")
    assert [schedule.reason for schedule in behind] == ["delayed: an approval in its session is still open"]


async def test_slow_tasks_of_a_user_do_not_delay_other_users(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    for number in range(AT_ONCE * 2):
        await world.make(f"{number}", kind="task", at="in 10 minutes", user="ana", channel=f"c{number}")
    hand.on(minutes=10)
    while await world.ticker.run_due() == 0:
        pass
    for number in range(AT_ONCE):
        await world.make("ben's", kind="task", at="in 10 minutes", user="ben", channel=f"b{number}")
    hand.on(minutes=10)
    while await world.ticker.run_due() == 0:
        pass
    assert Counter(turn.user for turn in await world.fired()) == {"ana": PER_USER, "ben": PER_USER}

    await world.make("cleo's", kind="task", at="in 10 minutes", user="cleo", channel="c")
    hand.on(minutes=10)
    # As when one turn has ended: the user with the fewest running tasks comes first.
    done = sa.update(turns).where(turns.c.content == "0").values(state="completed")
    await world.database.run(lambda connection: connection.execute(done))
    await world.ticker.run_due()
    assert Counter(turn.user for turn in await world.fired())["cleo"] == 1
    world.agent.gate.set()
    await world.wait_for_turns()
    await world.settle()
    assert Counter(turn.user for turn in await world.fired()) == {
        "ana": AT_ONCE * 2,
        "ben": AT_ONCE,
        "cleo": 1,
    }


async def test_ticker_runs_when_a_schedule_changes(world: World) -> None:
    """The ticker runs on its own clock; the test does not call ``look``."""
    world.ticker.start()
    await asyncio.sleep(0)
    made = await world.make(at="in 10 minutes")
    await world.database.run(
        lambda c: c.exec_driver_sql("UPDATE schedules SET due_at = created_at, try_at = created_at").rowcount
    )
    world.woken.set()
    async with asyncio.timeout(10):
        while True:  # each look is a transaction, and the ticker's transactions run in between
            if (await world.get(made)).state == "ended":
                break
    assert len(await world.fired()) == 1


async def test_ticker_can_be_stopped_while_it_wakes(world: World) -> None:
    world.ticker.start()
    for _ in range(20):  # until the ticker has looked and waits
        await world.database.run(lambda _: None)
    world.woken.set()
    async with asyncio.timeout(10):
        await world.ticker.stop()


async def test_ended_schedule_is_deleted_after_a_month(world: World, hand: Clock) -> None:
    made = await world.make(at="in 10 minutes")
    hand.on(minutes=10)
    await world.settle()
    hand.on(days=29)
    await world.settle()
    assert (await world.get(made)).state == "ended"
    hand.on(days=2)
    await world.settle()
    with pytest.raises(NotFound):
        await world.get(made)


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Australia/Lord_Howe"])
async def test_schedule_uses_its_own_timezone(world: World, hand: Clock, zone: str) -> None:
    made = await world.make(rule="every day at 9", timezone=zone)
    assert made.due_at == datetime(2026, 3, 3, 9, 0, tzinfo=ZoneInfo(zone)).astimezone(UTC)
