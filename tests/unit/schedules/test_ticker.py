"""What is due is fired: once, in time or late, whatever the clock and the gateway do."""

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

from torana.errors import ModelFailed, NotFound, StoreUnavailable
from torana.limits.budgets import Budgets
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.messages import GATEWAY_OWNER, Inbound
from torana.schedules.ticker import AT_ONCE, FAILURES, OF_ONE
from torana.sessions import Sessions
from torana.store import schedules as rows
from torana.store.tables import schedules, turns
from torana.turns import Queue, SessionChanges

Boot = Callable[..., Awaitable[World]]


def limited(hand: Clock, *limits: str) -> Budgets:
    return Budgets(limits=Limits(overall=[parse_limit(text) for text in limits]), prices=Prices(), clock=hand)


async def test_a_reminder_is_said_once_and_takes_no_model(world: World, hand: Clock) -> None:
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


async def test_a_reminder_stands_in_the_history_that_the_model_is_shown(world: World, hand: Clock) -> None:
    await world.make(at="in 10 minutes")
    hand.on(minutes=10)
    await world.settle()
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="done", channel="home")
    turn = await world.turns.ended(await world.turns.accept(said))

    window = await Sessions(database=world.database, history_messages=40).window(turn)
    assert [str(getattr(part, "content", "")) for message in window.messages for part in message.parts] == [
        "A reminder is due: call Ana",
        "Reminder: call Ana",
    ]


async def test_a_task_is_a_message_to_the_agent(world: World, hand: Clock) -> None:
    made = await world.make("how is the weather", kind="task", rule="every day at 10:00", token="tok_1")
    for day in (2, 3):
        hand.now = datetime(2026, 3, day, 9, 0, tzinfo=UTC)
        await world.settle()

    assert world.agent.asked == ["how is the weather"]  # it was made at half past ten in Berlin
    (turn,) = await world.fired()
    assert (turn.reply, turn.token) == ("done", "tok_1")
    assert (await world.get(made)).due_at == datetime(2026, 3, 4, 9, 0, tzinfo=UTC)


async def test_a_word_to_the_gateway_is_none_from_a_schedule(world: World, hand: Clock) -> None:
    made = await world.make("stop", kind="task", at="in 10 minutes")
    await world.database.run(lambda c: c.exec_driver_sql("UPDATE schedules SET text = '/stop'").rowcount)
    hand.on(minutes=10)
    await world.settle()
    assert world.agent.asked == ["/stop"]
    assert (await world.get(made)).state == "ended"


async def test_through_spring_and_autumn_each_time_of_the_clock_is_fired_once(
    world: World, hand: Clock
) -> None:
    await world.make("half past two", rule="30 2 * * *")
    await world.make("every half hour", rule="*/30 * * * *", channel="other")
    for month, day in ((3, 28), (10, 24)):  # the clock jumps on the day after
        hand.now = datetime(2026, month, day, 12, 0, tzinfo=UTC)
        await world.settle()
        before = Counter(turn.channel for turn in await world.fired())
        for _ in range(48 * 4):
            hand.on(minutes=15)
            await world.settle()
        count = Counter(turn.channel for turn in await world.fired()) - before
        assert count == {"home": 2, "other": 96}


async def test_over_a_long_time_down_it_runs_once_or_not_at_all(boot: Boot, hand: Clock) -> None:
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


async def test_a_short_time_down_misses_nothing(boot: Boot, hand: Clock) -> None:
    await (await boot()).make("skip", rule="every day at 11:00", missed="skip")
    hand.now = datetime(2026, 3, 2, 10, 4, tzinfo=UTC)
    second = await boot()
    await second.settle()
    assert [turn.reply for turn in await second.fired()] == ["Reminder: skip"]


async def test_a_machine_that_slept_misses_what_it_slept_through(world: World, hand: Clock) -> None:
    skipped = await world.make("skip", rule="every day at 11:00", missed="skip")
    await world.settle()
    hand.now = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
    await world.settle()
    assert await world.fired() == []
    assert (await world.get(skipped)).due_at == datetime(2026, 3, 3, 10, 0, tzinfo=UTC)


async def test_a_clock_that_is_set_back_fires_nothing_twice(world: World, hand: Clock) -> None:
    await world.make(rule="every hour")
    for hours in (1, -0.5, 0.25, 0.25, -3, 2, 1, 1):
        hand.on(hours=hours)
        await world.settle()
    # Half past ten to half past eleven, and once more up to 11:30 behind both ways back.
    assert [turn.created_at.hour for turn in await world.fired()] == [10, 11]


async def test_a_clock_that_was_years_ahead_comes_back_to_what_is_next(world: World, hand: Clock) -> None:
    made = await world.make(rule="every day at 12:00")
    right, hand.now = hand.now, datetime(2034, 1, 1, tzinfo=UTC)
    await world.settle()
    assert len(await world.fired()) == 1  # for all that was due by that clock
    hand.now = right
    await world.settle()

    # The 2nd of March was dealt with by the wrong clock; the 3rd is next.
    assert (await world.get(made)).due_at == datetime(2026, 3, 3, 11, 0, tzinfo=UTC)
    for day in (2, 3, 4):
        hand.now = datetime(2026, 3, day, 11, 0, tzinfo=UTC)
        await world.settle()
    assert len(await world.fired()) == 3


async def test_what_was_fired_again_while_the_clock_was_ahead_comes_back_too(world: World, hand: Clock) -> None:
    made = await world.make(rule="every day at 12:00")
    right = hand.now
    for day in (1, 2, 3):
        hand.now = datetime(2034, 1, day, 12, 0, tzinfo=UTC)
        await world.settle()
    assert len(await world.fired()) == 3
    hand.now = right
    await world.settle()

    # Of these it is not known any more that the first was dealt with.
    assert (await world.get(made)).due_at == datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
    for day in (2, 3):
        hand.now = datetime(2026, 3, day, 11, 0, tzinfo=UTC)
        await world.settle()
        await world.settle()
    assert len(await world.fired()) == 5


async def test_what_was_resumed_while_the_clock_was_ahead_comes_back_too(world: World, hand: Clock) -> None:
    made = await world.make(rule="every day at 12:00")
    await world.schedules.pause(GATEWAY_OWNER, made.id)
    await world.settle()
    right, hand.now = hand.now, datetime(2034, 1, 1, tzinfo=UTC)
    await world.schedules.resume(GATEWAY_OWNER, made.id)
    await world.settle()
    hand.now = right
    await world.settle()

    assert (await world.get(made)).due_at == datetime(2026, 3, 2, 11, 0, tzinfo=UTC)


async def test_a_schedule_that_is_rightly_due_in_months_is_left_as_it_is(boot: Boot, hand: Clock) -> None:
    made = await (await boot()).make(rule="every year on 24 December at 9")
    second = await boot()
    await second.settle()
    assert await second.get(made) == made


async def test_it_comes_back_also_when_the_database_could_not_be_written_just_then(
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
            await world.ticker.look()
    hand.on(seconds=30)
    await world.settle()

    assert (await world.get(made)).due_at == datetime(2026, 3, 3, 11, 0, tzinfo=UTC)


async def test_what_was_made_while_the_clock_was_ahead_comes_back_or_says_so(boot: Boot, hand: Clock) -> None:
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
    assert wrong.reason == "made while the machine's clock was ahead; its time may be wrong"
    later = await second.make(at="in 20 minutes")
    hand.on(days=1)
    await second.settle()
    assert Counter(turn.principal for turn in await second.fired()) == {ruled.principal: 1, later.principal: 1}


async def test_what_was_refused_while_the_clock_was_ahead_is_tried_again(boot: Boot, hand: Clock) -> None:
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


async def test_what_a_budget_refuses_is_tried_again_and_at_the_next_time_given_up(
    boot: Boot, hand: Clock
) -> None:
    world = await boot(budgets=limited(hand, "1 messages/day"))
    made = await world.make("work", kind="task", rule="every hour")
    hand.now = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
    await world.settle()
    hand.now = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
    await world.settle()

    waiting = await world.get(made)
    assert (waiting.tries, waiting.try_at) == (1, datetime(2026, 3, 2, 11, 1, tzinfo=UTC))
    assert (waiting.reason or "").startswith("not fired yet: The limit is 1 message")
    looks = 0
    while (await world.get(made)).tries:
        hand.now = (await world.get(made)).try_at or hand.now
        await world.settle()
        looks += 1
    assert looks == 6  # after 1, 2, 4, 8 and 15 minutes, and the next time comes before the one after
    missed = await world.get(made)
    assert missed.due_at == datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
    assert (missed.reason or "").startswith(
        "missed what was due on Monday, 2 March 2026 at 12:00 (Europe/Berlin)"
    )
    hand.now = datetime(2026, 3, 3, 0, 0, tzinfo=UTC)
    await world.settle()
    assert (len(await world.fired()), (await world.get(made)).reason) == (2, None)


async def test_a_task_that_is_due_once_is_given_up_after_a_day(boot: Boot, hand: Clock) -> None:
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


async def test_reminders_cost_nothing_and_are_refused_by_no_budget(boot: Boot, hand: Clock) -> None:
    world = await boot(budgets=limited(hand, "1 messages/day", "1 turns"))
    for number in range(3):
        await world.make(f"{number}", at="in 10 minutes")
    hand.on(minutes=10)
    await world.settle()
    assert [turn.reply for turn in await world.fired()] == [f"Reminder: {number}" for number in range(3)]


async def test_a_busy_session_queues_a_task_and_reminders_are_said_meanwhile(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="long work", channel="home")
    running = await world.turns.accept(said)
    await world.make("task", kind="task", at="in 10 minutes")
    await world.make("tea", at="in 10 minutes")
    hand.on(minutes=10)
    await world.ticker.look()

    states = {turn.content: turn.state for turn in await world.fired()}
    assert states == {"task": "queued", "A reminder is due: tea": "completed"}
    world.agent.gate.set()
    await world.answered()
    assert (await world.turns.get(GATEWAY_OWNER, running.id)).state == "completed"
    assert world.agent.asked == ["long work", "task"]


async def test_a_firing_without_an_answer_holds_up_the_next_of_its_schedule(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    made = await world.make("slow", kind="task", rule="every 5 minutes")
    for _ in range(12):
        hand.on(minutes=5)
        await world.ticker.look()
    assert len(await world.fired()) == 1
    assert "its last firing has no answer yet" in ((await world.get(made)).reason or "")
    world.agent.gate.set()
    await world.answered()
    hand.on(minutes=5)
    await world.settle()
    assert len(await world.fired()) == 2


async def test_what_fails_again_and_again_is_paused_and_can_be_resumed(world: World, hand: Clock) -> None:
    made = await world.make("work", kind="task", rule="every hour")
    world.agent.outcome = ModelFailed("no such model")
    for _ in range(FAILURES + 3):
        hand.on(hours=1)
        await world.settle()

    paused = await world.get(made)
    assert (len(await world.fired()), paused.state) == (FAILURES, "paused")
    assert paused.reason == "paused: it failed 10 times in a row, the last time because: no such model"
    world.agent.outcome = "done"
    resumed = await world.schedules.resume(GATEWAY_OWNER, made.id)
    assert (resumed.state, resumed.reason) == ("active", None)
    hand.on(hours=1)
    await world.settle()
    hand.on(hours=1)
    await world.settle()
    assert (len(await world.fired()), (await world.get(made)).failures) == (FAILURES + 2, 0)


async def test_one_that_cannot_be_fired_is_paused_and_holds_up_no_other(world: World, hand: Clock) -> None:
    odd = await world.make("first", kind="task", at="in 10 minutes")
    await world.make("second", kind="task", at="in 20 minutes")
    # As after a backup was brought to a machine that does not know the zone.
    nowhere = sa.update(schedules).where(schedules.c.id == odd.id).values(timezone="Nowhere/Gone")
    await world.database.run(lambda connection: connection.execute(nowhere))
    hand.on(hours=1)
    await world.settle()

    assert [turn.content.splitlines()[0] for turn in await world.fired()] == ["second"]
    paused = await world.get(odd)
    assert (paused.state, "ZoneInfoNotFoundError" in (paused.reason or "")) == ("paused", True)


async def test_one_good_answer_makes_up_for_failures(world: World, hand: Clock) -> None:
    made = await world.make("work", kind="task", rule="every hour")
    for number in range(FAILURES * 2):
        world.agent.outcome = "done" if number == FAILURES - 2 else ModelFailed("no")
        hand.on(hours=1)
        await world.settle()
    assert (await world.get(made)).state == "paused"
    assert len(await world.fired()) == 2 * FAILURES - 1


async def test_a_user_has_so_many_firings_a_day(boot: Boot, hand: Clock) -> None:
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


async def test_with_the_session_its_schedules_go(world: World, hand: Clock) -> None:
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


async def test_one_that_is_removed_at_the_last_moment_is_not_fired(world: World, hand: Clock) -> None:
    made = await world.make("work", kind="task", at="in 10 minutes")
    hand.on(minutes=10)
    found = await world.database.run(partial(rows.due_tasks, now=hand.now, at_once=5, of_one=5))
    assert [due.schedule.id for due in found] == [made.id]
    look = asyncio.ensure_future(world.ticker.look())
    await world.schedules.remove(GATEWAY_OWNER, made.id)
    await look
    await world.answered()
    # Whoever came first: a turn and no schedule, or neither.
    assert await world.count() == len(world.agent.asked) <= 1


async def test_two_tickers_fire_each_due_time_once(boot: Boot, hand: Clock) -> None:
    worlds = [await boot(), await boot()]
    for number in range(20):
        kind = "task" if number % 2 else "remind"
        # Each in a session of its own: what waits in one is run by the gateway that ran what was before it.
        await worlds[0].make(f"{number}", at="in 10 minutes", kind=kind, channel=f"c{number}")
    hand.on(minutes=10)
    for _ in range(5):
        await asyncio.gather(*(world.ticker.look() for world in worlds))
        for world in worlds:
            await world.answered()
    fired = Counter(turn.content for turn in await worlds[0].fired())
    assert (len(fired), set(fired.values())) == (20, {1})


async def test_a_thousand_at_once_are_all_fired_and_people_pass_them_by(world: World, hand: Clock) -> None:

    async def make(number: int) -> None:
        kind, user = "task" if number % 5 else "remind", f"user-{number % 40}"
        await world.make(f"{number}", at="2026-03-02 12:00", kind=kind, user=user, channel=f"c{number}")

    await asyncio.gather(*map(make, range(1_000)))
    hand.now = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
    world.agent.gate.clear()
    while await world.ticker.look() == 0:
        pass
    # All reminders are said, so many tasks run, and the others have not even been accepted.
    fired = await world.fired()
    assert Counter(turn.state for turn in fired) == {"completed": 200, "running": AT_ONCE}
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="a person", channel="person")
    person = await world.turns.accept(said)
    while "a person" not in world.agent.asked:
        await world.database.run(lambda _: None)
    world.agent.gate.set()
    await world.answered()
    assert (await world.turns.get(GATEWAY_OWNER, person.id)).state == "completed"
    await world.settle()

    fired = await world.fired()
    assert Counter(turn.state for turn in fired) == {"completed": 1_000}
    assert len({turn.channel for turn in fired}) == 1_000


async def test_a_conversation_that_waits_holds_up_no_other_tasks(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    said = Inbound(owner=GATEWAY_OWNER, principal="local", content="delete it", channel="home", user="ana")
    asking = await world.turns.accept(said)
    for number in range(AT_ONCE * 2):  # of many users, in one room
        await world.make(f"{number}", kind="task", at="in 10 minutes", user=f"user-{number}")
    hand.on(minutes=10)
    while await world.ticker.look() == 0:
        pass
    before = Counter(turn.state for turn in await world.fired())
    assert before == {"queued": AT_ONCE}  # they come when the room's turn has ended, which is soon
    await world.make("ben's", kind="task", at="in 10 minutes", user="ben", channel="b")
    hand.on(minutes=10)

    waits = sa.update(turns).where(turns.c.id == asking.id).values(state="waiting")
    await world.database.run(lambda connection: connection.execute(waits))
    while await world.ticker.look() == 0:
        pass
    assert {turn.content: turn.state for turn in await world.fired()}["ben's"] == "running"
    assert Counter(turn.channel for turn in await world.fired()) == {"home": AT_ONCE, "b": 1}
    behind = await world.schedules.of_speaker(GATEWAY_OWNER, "user-19", "home")
    assert [schedule.reason for schedule in behind] == [
        "not fired yet: a question in its conversation has no answer yet"
    ]


async def test_one_users_slow_tasks_hold_up_nobody_elses(world: World, hand: Clock) -> None:
    world.agent.gate.clear()
    for number in range(AT_ONCE * 2):
        await world.make(f"{number}", kind="task", at="in 10 minutes", user="ana", channel=f"c{number}")
    hand.on(minutes=10)
    while await world.ticker.look() == 0:
        pass
    for number in range(AT_ONCE):
        await world.make("ben's", kind="task", at="in 10 minutes", user="ben", channel=f"b{number}")
    hand.on(minutes=10)
    while await world.ticker.look() == 0:
        pass
    assert Counter(turn.user for turn in await world.fired()) == {"ana": OF_ONE, "ben": OF_ONE}

    await world.make("cleo's", kind="task", at="in 10 minutes", user="cleo", channel="c")
    hand.on(minutes=10)
    # As when one has ended: whoever has fewest of them comes first, however long others' are due.
    done = sa.update(turns).where(turns.c.content == "0").values(state="completed")
    await world.database.run(lambda connection: connection.execute(done))
    await world.ticker.look()
    assert Counter(turn.user for turn in await world.fired())["cleo"] == 1
    world.agent.gate.set()
    await world.answered()
    await world.settle()
    assert Counter(turn.user for turn in await world.fired()) == {
        "ana": AT_ONCE * 2,
        "ben": AT_ONCE,
        "cleo": 1,
    }


async def test_it_looks_by_itself_when_something_is_due_or_has_changed(world: World) -> None:
    """With the clock as it is: nobody calls ``look``."""
    world.ticker.start()
    await asyncio.sleep(0)
    made = await world.make(at="in 10 minutes")
    await world.database.run(
        lambda c: c.exec_driver_sql("UPDATE schedules SET due_at = created_at, try_at = created_at").rowcount
    )
    world.woken.set()
    async with asyncio.timeout(10):
        while True:  # each look is a transaction, and the ticker's come between them
            if (await world.get(made)).state == "ended":
                break
    assert len(await world.fired()) == 1


async def test_it_can_be_stopped_at_the_moment_it_is_woken(world: World) -> None:
    world.ticker.start()
    for _ in range(20):  # until it has looked, and waits
        await world.database.run(lambda _: None)
    world.woken.set()
    async with asyncio.timeout(10):
        await world.ticker.stop()


async def test_what_ended_is_forgotten_after_a_month(world: World, hand: Clock) -> None:
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
async def test_other_zones_have_their_own_clocks(world: World, hand: Clock, zone: str) -> None:
    made = await world.make(rule="every day at 9", timezone=zone)
    assert made.due_at == datetime(2026, 3, 3, 9, 0, tzinfo=ZoneInfo(zone)).astimezone(UTC)
