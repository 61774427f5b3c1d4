"""Queries on delivery rows, and the promises of their numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from torana.store.engine.tables import deliveries
from torana.store.rows import deliveries as rows
from torana.store.rows.deliveries import Delivery

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def add(connection: Connection, text: str, *, account: str = "home") -> Delivery:
    rows.add_notice(connection, account, f"{account}/ana", "{}", text=text, at=AT)
    return rows.list_deliveries(connection, "gateway", limit=1)[0]


def plans_of(connection: Connection, work: Callable[[Connection], object]) -> list[str]:
    """Return the query plans of the work's statements, with unknown parameters."""
    asked: list[tuple[str, Any]] = []

    @event.listens_for(connection, "before_cursor_execute")
    def note(_connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        asked.append((statement, parameters))

    work(connection)
    event.remove(connection, "before_cursor_execute", note)
    return [
        step[-1]
        for statement, parameters in asked
        for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        if "deliveries" in step[-1]
    ]


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize(
    ("work", "index"),
    [
        (partial(rows.heads, account="home", now=AT), "ix_deliveries_open"),
        (partial(rows.list_interrupted, account="home"), "ix_deliveries_open"),
        (partial(rows.sweep, accounts=["home"], now=AT), "ix_deliveries_open"),
        (rows.count_waiting, "ix_deliveries_unsent"),
    ],
    ids=["heads", "list_interrupted", "sweep", "count_waiting"],
)
def test_open_deliveries_are_found_by_index(
    engine: Engine, work: Callable[[Connection], object], index: str
) -> None:
    with engine.begin() as connection:
        plans = plans_of(connection, work)

    assert any(index in plan for plan in plans)
    by_number = "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid=?)"
    assert [plan for plan in plans if index not in plan and plan != by_number] == []


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_expired_deliveries_are_found_by_their_end(engine: Engine) -> None:
    with engine.begin() as connection:
        kept = add(connection, "one")
        plans = plans_of(connection, partial(rows.record_sent, number=kept.number, shown_as="1", at=AT))

    assert [plan for plan in plans if "ix_deliveries_ended" not in plan] == [
        "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid=?)"
    ]
    assert len(plans) == 2


def test_delivery_numbers_are_never_reused(engine: Engine) -> None:
    with engine.begin() as connection:
        first, last = add(connection, "one"), add(connection, "two")
        connection.execute(sa.delete(deliveries))

        assert add(connection, "three").number > last.number > first.number


def test_sent_and_dropped_deliveries_are_deleted_after_a_month(engine: Engine) -> None:
    with engine.begin() as connection:
        sent, dropped, refused, new = (add(connection, text) for text in ("one", "two", "three", "four"))
        rows.record_sent(connection, sent.number, "1", AT)
        rows.end(connection, dropped.number, "dropped", AT)
        rows.end(connection, refused.number, "refused", AT, reason="gone")

        rows.record_sent(connection, new.number, "4", AT + timedelta(days=31))

        assert [row.number for row in rows.list_deliveries(connection, "gateway", limit=9)] == [
            new.number,
            refused.number,
        ]


GONE = "account is not configured"


def test_delivery_whose_text_changed_is_neither_split_nor_sent(engine: Engine) -> None:
    with engine.begin() as connection:
        read = add(connection, "Let me see.\n\nMay I run `pay`?\n\nAnswer yes or no.")
        connection.execute(sa.update(deliveries).values(text="Let me see."))

        assert rows.cut(connection, read, ["Let me see.", "May I run `pay`?"], "") is None
        assert not rows.begin(connection, read, AT)
        (now,) = rows.list_deliveries(connection, "gateway", limit=2)
        assert (now.state, now.text) == ("pending", "Let me see.")
        assert rows.begin(connection, now, AT)


def states_of(connection: Connection) -> list[tuple[str, str | None]]:
    """Return the state and reason of each delivery, oldest first."""
    return [(row.state, row.reason) for row in reversed(rows.list_deliveries(connection, "gateway", limit=9))]


def test_deliveries_of_a_removed_account_are_marked_until_it_returns(engine: Engine) -> None:
    with engine.begin() as connection:
        add(connection, "waits", account="gone")
        rows.begin(connection, add(connection, "was being sent", account="gone"), AT)
        rows.end(
            connection, add(connection, "held", account="gone").number, "refused", AT, reason="no such chat"
        )
        here = add(connection, "here")
        rows.begin(connection, here, AT)
        rows.put_back(connection, replace(here, tries=1), due_at=AT, reason="down")
        others = [("refused", "no such chat"), ("pending", "down")]

        rows.sweep(connection, ["home"], AT)
        assert states_of(connection) == [("pending", GONE), ("sending", GONE), *others]

        rows.sweep(connection, ["home", "gone"], AT)
        assert states_of(connection) == [("pending", None), ("sending", None), *others]

        rows.sweep(connection, [], AT)
        assert states_of(connection) == [("pending", GONE), ("sending", GONE), others[0], ("pending", GONE)]


def test_deliveries_become_stale_after_a_day(engine: Engine) -> None:
    with engine.begin() as connection:
        add(connection, "waits", account="gone")
        rows.begin(connection, add(connection, "was being sent", account="gone"), AT)
        add(connection, "its platform is down")
        rows.begin(connection, add(connection, "is being sent"), AT)

        rows.sweep(connection, ["home"], AT + rows.FRESH)
        assert [state for state, _ in states_of(connection)] == ["pending", "sending", "pending", "sending"]

        rows.sweep(connection, ["home"], AT + rows.FRESH + timedelta(seconds=1))
        assert states_of(connection) == [
            ("stale", GONE),
            ("ambiguous", GONE),
            ("stale", "not delivered within 24 hours"),
            ("sending", None),
        ]
