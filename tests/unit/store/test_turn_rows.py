"""Guarantees of the tables themselves, independent of the code above them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from torana.errors import NotFailed
from torana.messages import EVERYONE, Failure, Inbound, Turn, Usage
from torana.store.engine.tables import UtcTime, sessions, turns
from torana.store.engine.tables import deliveries as delivery_table
from torana.store.rows import deliveries, shared_turns, transcript
from torana.store.rows import sessions as session_rows
from torana.store.rows import turns as rows
from torana.store.rows.turns import Ending, NewTurn

PARTIAL = re.compile("USING INDEX (ix_turns_unfinished|uq_turns_active)")
AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
FAILURE = Failure(code="model_failed", detail="no key")
DONE = Ending(at=AT, reply="hi", model="m", spent=Usage(input_tokens=1, output_tokens=2))


@pytest.fixture
def take(message: Callable[..., Inbound]) -> Callable[..., Turn]:
    """``take(connection, "t1", channel="c")`` accepts a message."""

    def accept(connection: Connection, turn_id: str, *, channel: str = "home", **who: str) -> Turn:
        new = NewTurn(turn_id=turn_id, session_id=f"ses_{turn_id}", channel=channel, at=AT)
        return rows.accept(connection, message(channel=channel, **who), new, hold=False).turn

    return accept


def states(connection: Connection) -> dict[str, str]:
    return {row.id: row.state for row in connection.execute(sa.select(turns.c.id, turns.c.state))}


def test_database_allows_one_running_turn_per_session(engine: Engine, take: Callable[..., Turn]) -> None:
    with engine.begin() as connection:
        take(connection, "t1")
        take(connection, "t2")
        take(connection, "elsewhere", channel="other")
    assert_refused(engine, sa.update(turns).where(turns.c.id == "t2").values(state="running"))
    assert_refused(engine, sa.update(turns).where(turns.c.id == "t2").values(state="waiting"))
    with engine.begin() as connection:
        assert states(connection) == {"t1": "running", "t2": "queued", "elsewhere": "running"}


def test_database_allows_one_turn_per_seq_and_one_session_per_channel(
    engine: Engine, take: Callable[..., Turn]
) -> None:
    with engine.begin() as connection:
        take(connection, "t1")
        take(connection, "t2")
        take(connection, "t3", channel="other")
    assert_refused(engine, sa.update(turns).where(turns.c.id == "t2").values(seq=1))
    assert_refused(engine, sa.update(sessions).where(sessions.c.channel == "other").values(channel="home"))
    assert_refused(engine, sa.update(turns).where(turns.c.id == "t2").values(session_id="nowhere"))


def assert_refused(engine: Engine, statement: sa.Update) -> None:
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(statement)


def test_sequence_numbers_follow_the_order_of_acceptance(engine: Engine, take: Callable[..., Turn]) -> None:
    with engine.begin() as connection:
        taken = [take(connection, turn_id) for turn_id in ("t9", "t1", "t5")]

    assert [(turn.id, turn.seq, turn.state) for turn in taken] == [
        ("t9", 1, "running"),
        ("t1", 2, "queued"),
        ("t5", 3, "queued"),
    ]
    assert {turn.session_id for turn in taken} == {"ses_t9"}


def test_end_of_a_turn_claims_the_next_one(engine: Engine, take: Callable[..., Turn]) -> None:
    with engine.begin() as connection:
        first = take(connection, "t9")
        take(connection, "t5")
        take(connection, "t2")
        (ended,), following = rows.finish(connection, first, DONE, hold=False)

        assert rows.get(connection, "gateway", "t9") == ended
        assert following == rows.get(connection, "gateway", "t5")
        assert states(connection) == {"t9": "completed", "t5": "running", "t2": "queued"}
    assert following is not None
    assert (following.attempt, ended.attempt) == (1, 1)


def test_rows_are_read_as_written(engine: Engine, take: Callable[..., Turn]) -> None:
    failed = Ending(at=AT, state="failed", failure=FAILURE)
    with engine.begin() as connection:
        first = take(connection, "t1", user="ana")
        second = take(connection, "t2")
        rows.finish(connection, first, DONE, hold=False)
        rows.finish(connection, replace(second, state="running", attempt=1), failed, hold=False)
        found = [rows.get(connection, "gateway", turn_id) for turn_id in ("t1", "t2")]

    completed, broken = found
    assert completed == replace(
        first,
        state="completed",
        reply="hi",
        model="m",
        usage=Usage(input_tokens=1, output_tokens=2),
        ended_at=AT,
    )
    assert broken is not None
    assert (broken.state, broken.failure, broken.reply, broken.usage) == (
        "failed",
        Failure(code="model_failed", detail="no key"),
        None,
        Usage(),
    )


def test_recovery_requeues_unfinished_turns_and_counts_the_crash(
    engine: Engine, take: Callable[..., Turn]
) -> None:
    with engine.begin() as connection:
        for turn_id, channel in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("c1", "c")]:
            last = take(connection, turn_id, channel=channel)
        rows.finish(connection, last, DONE, hold=False)
        connection.execute(sa.update(turns).where(turns.c.id == "b1").values(state="waiting"))
    with engine.begin() as connection:
        found = [(turn.id, turn.state, turn.attempt, turn.crashes) for turn in shared_turns.recover(connection)]
        claimed = [(turn.id, turn.state, turn.attempt) for turn in rows.claim_all(connection)]
        assert states(connection) == {
            "a1": "running",
            "a2": "queued",
            "b1": "running",
            "b2": "queued",
            "c1": "completed",
        }

    assert found == [
        ("a1", "queued", 1, 1),
        ("a2", "queued", 0, 0),
        ("b1", "queued", 1, 0),  # it only waited for an approval
        ("b2", "queued", 0, 0),
    ]
    assert claimed == [("a1", "running", 2), ("b1", "running", 2)]


def test_stop_leaves_interrupts_to_the_next_start(
    engine: Engine, take: Callable[..., Turn], message: Callable[..., Inbound]
) -> None:
    with engine.begin() as connection:
        for channel in ("a", "b"):
            take(connection, f"{channel}1", channel=channel, user="ana")
            take(connection, f"{channel}2", channel=channel, user="bob")
        urgent = message(channel="a", user="ana", on_busy="interrupt")
        new = NewTurn(turn_id="a3", session_id="ses_a3", channel="a", at=AT)
        rows.accept(connection, urgent, new, hold=False)
        shared_turns.requeue(connection)

        assert states(connection) == dict.fromkeys(["a2", "a3", "b1", "b2"], "queued") | {"a1": "running"}
        assert [(turn.id, turn.state) for turn in shared_turns.list_interrupted(connection)] == [
            ("a1", "queued")
        ]
        shared_turns.recover(connection)
        assert shared_turns.list_interrupted(connection) == []


def test_stop_and_crash_leave_a_requested_cancellation_to_the_next_start(
    engine: Engine, take: Callable[..., Turn]
) -> None:
    with engine.begin() as connection:
        for turn_id in ("t1", "t2"):
            take(connection, turn_id, channel=turn_id)
        rows.request_cancel(connection, "t1")
        shared_turns.requeue(connection)

        assert states(connection) == {"t1": "running", "t2": "queued"}
        assert [turn.id for turn in shared_turns.list_interrupted(connection)] == ["t1"]


def test_retried_turn_is_no_longer_to_be_cancelled(engine: Engine, take: Callable[..., Turn]) -> None:
    with engine.begin() as connection:
        turn = take(connection, "t1")
        rows.request_cancel(connection, "t1")
        rows.finish(connection, turn, replace(DONE, state="failed"), hold=False)
        rows.retry(connection, "gateway", "t1", hold=False)

        assert shared_turns.list_interrupted(connection) == []


def test_failed_turn_with_deliveries_is_retried_again_and_again(
    engine: Engine, take: Callable[..., Turn]
) -> None:
    with engine.begin() as connection:
        deliveries.subscribe(connection, "hooks", ["turn.failed"])
        turn = take(connection, "t1")
        if connection.dialect.name == "postgresql":  # as in a table with many deliveries
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for _ in range(5):
            rows.finish(connection, turn, replace(DONE, state="failed", failure=FAILURE), hold=False)
            retried = rows.retry(connection, "gateway", "t1", hold=False)
            assert retried is not None
            turn = retried
        rows.finish(connection, turn, DONE, hold=False)

        assert states(connection) == {"t1": "completed"}
        parts = connection.execute(sa.select(delivery_table.c.part).order_by(delivery_table.c.number)).scalars()
        assert [part % 1_000_000 for part in parts] == [500_000] * 5


def test_turn_with_many_attempts_is_not_retried(engine: Engine, take: Callable[..., Turn]) -> None:
    with engine.begin() as connection:
        turn = take(connection, "t1")
        rows.finish(connection, turn, replace(DONE, state="failed", failure=FAILURE), hold=False)
        connection.execute(sa.update(turns).values(attempt=1_000))

        with pytest.raises(NotFailed, match="send the message again"):
            rows.retry(connection, "gateway", "t1", hold=False)


def test_other_tokens_cannot_steer_or_interrupt_a_turn(engine: Engine, take: Callable[..., Turn]) -> None:
    with engine.begin() as connection:
        running = take(connection, "t1")
        take(connection, "t2", token="tok_1")
        of_the_token = sa.update(turns).where(turns.c.id == "t2")

        connection.execute(of_the_token.values(on_busy="steer"))
        assert rows.take_steers(connection, running, 1) == []
        connection.execute(of_the_token.values(on_busy="interrupt"))
        assert shared_turns.list_interrupted(connection) == []


def test_recovery_without_unfinished_turns_finds_nothing(engine: Engine) -> None:
    with engine.begin() as connection:
        assert shared_turns.recover(connection) == []


def test_turn_of_another_owner_is_not_found(engine: Engine, take: Callable[..., Turn]) -> None:
    with engine.begin() as connection:
        take(connection, "t1", owner="ana")
        other = take(connection, "t2", owner="bob")

        assert rows.get(connection, "bob", "t1") is None
        assert (other.seq, other.state) == (1, "running")


@pytest.mark.parametrize(
    ("speakers", "shared"),
    [
        (["ana"], False),
        ([None], False),
        (["ana", None, "ana"], False),
        ([None, "ana"], False),
        (["ana", "bob", "ana"], True),
    ],
)
def test_session_is_shared_after_two_users_spoke(
    engine: Engine, take: Callable[..., Turn], speakers: list[str | None], shared: bool
) -> None:
    with engine.begin() as connection:
        taken = [take(connection, f"t{n}", user=user) for n, user in enumerate(speakers)]

        newest = transcript.newest(connection, "gateway", taken[0].session_id, turns_limit=1)
        assert newest.shared is shared
        assert transcript.newest(connection, "ana", taken[0].session_id, turns_limit=1).shared is False


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_queries_do_not_scan_ended_turns(engine: Engine, take: Callable[..., Turn]) -> None:
    statements: list[str] = []
    with engine.begin() as connection:
        take(connection, "warm")
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.set_trace_callback(statements.append)
        rows.finish(connection, take(connection, "t1"), DONE, hold=False)
        shared_turns.list_interrupted(connection)
        shared_turns.recover(connection)
        raw.set_trace_callback(None)
        plans = [
            step[-1]
            for statement in statements
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")
        ]

    # The queries read neither a whole table nor the ended turns of a session, only the partial indexes.
    scans = [plan for plan in plans if plan.startswith("SCAN") and plan != "SCAN CONSTANT ROW"]
    assert [plan for plan in scans if not PARTIAL.search(plan)] == []
    assert [plan for plan in plans if "turns USING INDEX sqlite_autoindex_turns_2" in plan] == []


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize("owner", ["gateway", EVERYONE])
@pytest.mark.parametrize("newest", [False, True])
def test_page_of_messages_is_read_by_index_without_sorting(
    engine: Engine, take: Callable[..., Turn], owner: str, newest: bool
) -> None:
    statements: list[str] = []
    with engine.begin() as connection:
        turn = take(connection, "t1")
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.set_trace_callback(statements.append)
        session_rows.list_turns(connection, owner, turn.session_id, from_seq=2_500, limit=50, newest=newest)
        raw.set_trace_callback(None)
        (statement,) = statements
        plan = [step[-1] for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")]

    bound = "<" if newest else ">"
    index = "sqlite_autoindex_turns_2"
    assert plan == [f"SEARCH turns USING INDEX {index} (session_id=? AND seq{bound}?)"]


def test_times_are_stored_in_utc_and_read_as_aware(engine: Engine) -> None:
    kind = UtcTime()
    east = AT.astimezone(timezone(timedelta(hours=5)))

    assert kind.process_bind_param(east, engine.dialect) == AT
    assert kind.process_bind_param(None, engine.dialect) is None
    assert kind.process_result_value(AT.replace(tzinfo=None), engine.dialect) == AT
    assert kind.process_result_value(AT, engine.dialect) is AT
    assert kind.process_result_value(None, engine.dialect) is None
