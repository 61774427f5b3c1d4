"""The schedule tools as the model calls them, over real schedules."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pytest
from pydantic_ai import RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from torana.errors import ScheduleInvalid
from torana.messages import EVERYONE, Turn
from torana.schedules import NewSchedule, Schedules, ScheduleTools, words
from torana.schedules import tools as module
from torana.store.engine.database import Database
from torana.tools import ToolContext, ToolError
from torana.tools.computing import Computing

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
TURN = Turn(
    id="turn_1",
    owner="gateway",
    session_id="ses_1",
    channel="tg/1",
    seq=1,
    principal="connector:tg",
    user="ana",
    content="hello",
    state="running",
    attempt=1,
    created_at=AT,
    account="tg",
    place='{"chat": "1"}',
)


def context(call: str = "c1", *, may_recall: bool = True, **turn: str | None) -> RunContext[ToolContext]:
    said = replace(TURN, **turn)
    zone = ZoneInfo("Europe/Berlin")
    deps = ToolContext(turn=said, may_recall=may_recall, timezone=zone, clock=lambda: AT)
    return RunContext(deps=deps, model=TestModel(), usage=RunUsage(), tool_call_id=call)


@pytest.fixture
def now() -> list[datetime]:
    """The current time, which a test may change."""
    return [AT]


@pytest.fixture
def schedules(database: Database, computing: Computing, now: list[datetime]) -> Schedules:
    return Schedules(
        database=database,
        computing=computing,
        zone=ZoneInfo("UTC"),
        per_user=3,
        min_minutes=5,
        changed=lambda: None,
        clock=lambda: now[0],
    )


@pytest.fixture
def tools(schedules: Schedules) -> ScheduleTools:
    return ScheduleTools(schedules=schedules)


async def test_day_in_free_words_is_read_in_another_process(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some words of the permitted length take dateparser 70 ms."""
    monkeypatch.setattr(words, "read_date", Mock(side_effect=AssertionError("read in the event loop")))
    new = NewSchedule(owner="gateway", text="call Ana", at="the 1st of may at 9")

    assert (await schedules.make(new)).due_at == datetime(AT.year, 5, 1, 9, tzinfo=UTC)
    with pytest.raises(ScheduleInvalid, match="“mo z z z” is not a date"):
        await schedules.make(replace(new, at="mo z z z"))


async def test_new_reminder_is_confirmed_with_its_time_and_zone(
    tools: ScheduleTools, schedules: Schedules
) -> None:
    told = await tools.schedule_once(context(), "call Ana", "tomorrow at 9")
    assert told == "Scheduled: reminder “call Ana”, Tuesday, 3 March 2026 at 09:00 (Europe/Berlin)"
    (made,) = (await schedules.list_schedules(EVERYONE, limit=5)).items
    assert (made.owner, made.user, made.channel, made.account, made.place) == (
        "gateway",
        "ana",
        "tg/1",
        "tg",
        '{"chat": "1"}',
    )


async def test_new_rule_is_confirmed_with_its_parsed_form(tools: ScheduleTools) -> None:
    told = await tools.schedule_repeating(context(), "the weather?", "every weekday at 17:00", "task")
    when = "Monday, 2 March 2026 at 17:00 (Europe/Berlin), then every weekday at 17:00"
    assert told == f"Scheduled: task “the weather?”, {when}"


async def test_repeated_call_returns_the_same_schedule(tools: ScheduleTools, now: list[datetime]) -> None:
    first = await tools.schedule_once(context(), "call Ana", "at 11:00")
    now[0] = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)  # the process was down, and the journal repeats the call
    assert await tools.schedule_once(context(), "call Ana", "at 11:00") == first
    assert (await tools.list_schedules(context())).count("\n") == 0
    # A call with other arguments makes another schedule, even under the same id.
    await tools.schedule_once(context(), "call Ben", "in 2 hours")
    assert (await tools.list_schedules(context())).count("\n") == 1


async def test_schedules_can_be_cancelled_by_text_or_id(tools: ScheduleTools) -> None:
    for number, text in enumerate(("call Ana", "call Ben", "buy milk")):
        await tools.schedule_once(context(str(number)), text, f"in {number + 1} hours")
    listed = (await tools.list_schedules(context())).splitlines()
    assert [line.split("“")[1].split("”")[0] for line in listed] == ["call Ana", "call Ben", "buy milk"]
    with pytest.raises(ToolError, match="2 schedules match that"):
        await tools.cancel_schedule(context(), "call")
    assert await tools.cancel_schedule(context(), "ANA") == "Cancelled: call Ana"
    ben = listed[1].split("[")[1].removesuffix("]")
    assert await tools.cancel_schedule(context(), ben) == "Cancelled: call Ben"
    for nothing in ("Ana", "sch_1", "?!"):
        assert await tools.cancel_schedule(context(), nothing) == "No schedule matches that."
    assert (await tools.list_schedules(context())).startswith("- reminder “buy milk”")


async def test_schedules_are_separate_for_each_user_or_anonymous_channel(tools: ScheduleTools) -> None:
    await tools.schedule_once(context(), "ana's", "in 1 hour")
    await tools.schedule_once(context(user=None), "nobody's", "in 1 hour")
    assert "ana's" in await tools.list_schedules(context(channel="elsewhere"))
    for others in (context(user="ben"), context(owner="user:ana"), context(user=None, channel="elsewhere")):
        assert await tools.list_schedules(others) == "There are no schedules."
        assert await tools.cancel_schedule(others, "ana's") == "No schedule matches that."
    assert "nobody's" in await tools.list_schedules(context(user=None))
    # In a shared session, schedules made elsewhere are not listed.
    assert "ana's" in await tools.list_schedules(context(may_recall=False))
    elsewhere = context(may_recall=False, channel="elsewhere")
    assert await tools.list_schedules(elsewhere) == "There are no schedules."


async def test_scheduled_turn_cannot_create_schedules(tools: ScheduleTools) -> None:
    for make in (tools.schedule_once, tools.schedule_repeating):
        with pytest.raises(ToolError, match="cannot create schedules"):
            await make(context(principal="schedule:sch_1"), "again", "every hour")


async def test_schedule_errors_reach_the_model(tools: ScheduleTools) -> None:
    with pytest.raises(ToolError, match="is in the past"):
        await tools.schedule_once(context(), "x", "2026-03-01 09:00")
    with pytest.raises(ToolError, match="is not a rule"):
        await tools.schedule_repeating(context(), "x", "now and then")
    for number in range(3):
        await tools.schedule_once(context(str(number)), "x", "in 1 hour")
    with pytest.raises(ToolError, match="Remove a schedule first"):
        await tools.schedule_once(context("4"), "x", "in 1 hour")


async def test_texts_are_not_searched_on_the_event_loop(
    tools: ScheduleTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting 50 long texts into words takes a second."""
    threads = set[threading.Thread]()

    def words(text: str) -> list[str]:
        threads.add(threading.current_thread())
        return text.split()

    monkeypatch.setattr(module, "words", words)
    await tools.schedule_once(context(), "call Ana", "in 2 hours")

    assert await tools.cancel_schedule(context(), "Ana") == "Cancelled: call Ana"

    assert threads
    assert threading.main_thread() not in threads
