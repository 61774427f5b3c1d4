"""The guard of schedule rows against a schedule that changed since it was read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.engine import Connection, Engine

from torana.store.rows import schedules as rows
from torana.store.rows.schedules import Schedule, ScheduleChanged

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def due(engine: Engine) -> Schedule:
    schedule = Schedule(
        id="sch_1",
        owner="gateway",
        user="ana",
        channel="home",
        kind="remind",
        text="call Ana",
        cron="30 * * * *",
        timezone="UTC",
        missed="run_once",
        created_at=AT - HOUR,
        due_at=AT,
        try_at=AT,
    )
    with engine.begin() as connection:
        assert rows.add(connection, schedule, most=1)
    return schedule


def read_schedule(connection: Connection) -> Schedule:
    schedule = rows.get(connection, "gateway", "sch_1")
    assert schedule is not None
    return schedule


def test_a_due_time_is_settled_once(engine: Engine, due: Schedule) -> None:
    following = replace(due, due_at=AT + HOUR, try_at=AT + HOUR, dealt_with=AT, dealt_at=AT)
    with engine.begin() as connection:
        rows.settle(connection, due, following)
    with engine.begin() as connection, pytest.raises(ScheduleChanged):
        rows.settle(connection, due, following)
    with engine.begin() as connection:
        assert read_schedule(connection) == following


@pytest.mark.parametrize(
    "change",
    [{"state": "paused", "try_at": None}, {"due_at": AT + HOUR, "try_at": AT + HOUR}, {"tries": 1}],
    ids=["paused", "moved", "tried"],
)
def test_a_schedule_that_changed_after_it_was_read_is_not_fired(
    engine: Engine, due: Schedule, change: dict[str, object]
) -> None:
    changed = replace(due, **change)
    with engine.begin() as connection:
        rows.put(connection, changed)
    with engine.begin() as connection, pytest.raises(ScheduleChanged):
        rows.settle(connection, due, replace(due, due_at=AT + 2 * HOUR, tries=0))
    with engine.begin() as connection:
        assert read_schedule(connection) == changed
