"""Rows of a session that is forked from another session."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine, RowMapping

from torana.errors import ChannelTaken, Conflict, NotEnded, NotFound
from torana.store.engine.tables import history, sessions, turns
from torana.store.rows.session_forks import NewSession, fork

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
LATER = datetime(2026, 3, 3, tzinfo=UTC)


def fill(engine: Engine, number: int, **session: Any) -> None:
    """Insert a session ``s`` with turns ``t1`` and so on, each with its entry in the history."""
    at = {"created_at": AT, "updated_at": AT}
    row = {"id": "s", "owner": "gateway", "channel": "home", "next_seq": number + 1, "shared": False, **at}
    turn = {
        "owner": "gateway",
        "session_id": "s",
        "channel": "home",
        "principal": "local",
        "user": "ana",
        "content": "hi",
        "state": "completed",
        "attempt": 1,
        "reply": "yes",
        "input_tokens": 5,
        "output_tokens": 5,
        "cost_usd": 0.5,
        "reserved_tokens": 3,
        "created_at": AT,
        "ended_at": AT,
    }
    places = range(1, number + 1)
    kept = {"session_id": "s", "owner": "gateway", "messages": 2}
    with engine.begin() as connection:
        connection.execute(sa.insert(sessions), row | session)
        connection.execute(sa.insert(turns), [turn | {"id": f"t{n}", "seq": n} for n in places])
        bodies = [kept | {"turn_id": f"t{n}", "seq": n, "body": b"[%d]" % n} for n in places]
        connection.execute(sa.insert(history), bodies)


def change(engine: Engine, turn_id: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(turns).where(turns.c.id == turn_id).values(**values))


def copy(
    engine: Engine,
    last: str | None = None,
    *,
    channel: str = "copy",
    owner: str = "gateway",
    most: int = 100,
    most_bytes: int = 100_000,
) -> RowMapping:
    numbers = count(1)
    new = NewSession(
        session_id=f"f-{channel}",
        channel=channel,
        at=LATER,
        turn_id=lambda: f"c{next(numbers)}",
        title_of=str,
    )
    with engine.begin() as connection:
        return fork(connection, owner, "s", last=last, new=new, most=most, most_bytes=most_bytes)


def rows_of(engine: Engine, table: sa.Table, session_id: str) -> list[RowMapping]:
    with engine.begin() as connection:
        query = sa.select(table).where(table.c.session_id == session_id).order_by(table.c.seq)
        return list(connection.execute(query).mappings())


def test_title_is_not_copied_without_its_message(engine: Engine) -> None:
    fill(engine, 3, title="ana's words")
    change(engine, "t1", content="ana's words", state="running", ended_at=None)

    assert copy(engine, "t2")["title"] is None


def test_turns_and_history_are_copied_in_order(engine: Engine) -> None:
    fill(engine, 4, title="hi", speaker="ana", shared=True)
    made = copy(engine, "t3")
    assert {
        name: made[name] for name in ("id", "owner", "channel", "next_seq", "title", "speaker", "shared")
    } == {
        "id": "f-copy",
        "owner": "gateway",
        "channel": "copy",
        "next_seq": 4,
        "title": "hi",
        "speaker": "ana",
        "shared": True,
    }
    assert (made["created_at"], made["updated_at"]) == (LATER, LATER)
    originals, copies = rows_of(engine, turns, "s"), rows_of(engine, turns, "f-copy")
    changed = {
        "session_id": "f-copy",
        "channel": "copy",
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_usd": 0.0,
        "reserved_tokens": 0,
    }
    assert [dict(row) for row in copies] == [
        dict(row) | changed | {"id": f"c{row['seq']}"} for row in originals[:3]
    ]
    places = [(row["seq"], row["turn_id"], row["body"]) for row in rows_of(engine, history, "f-copy")]
    assert places == [(1, "c1", b"[1]"), (2, "c2", b"[2]"), (3, "c3", b"[3]")]


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        (None, (2, "notes", 3)),
        ("t4", (2, "notes", 3)),
        ("t3", (2, "notes", 3)),
        ("t2", (2, None, 0)),  # the summary covers turns that are not copied
        ("t1", (0, None, 0)),  # the turn was hidden, and the fork is made from it
    ],
)
def test_summary_is_copied_only_if_it_covers_copied_turns(
    engine: Engine, last: str | None, shown: tuple[int, str | None, int]
) -> None:
    fill(engine, 5, fresh_from=2, summary="notes", summary_to=3)
    made = copy(engine, last)
    assert (made["fresh_from"], made["summary"], made["summary_to"]) == shown


@pytest.mark.parametrize(
    ("last", "fresh_seq", "shown"),
    [
        (None, 3, (2, 3)),
        ("t3", 3, (2, 3)),
        ("t2", 3, (0, 0)),  # the turn ended after the new conversation started, and the fork is made from it
        (None, 8, (2, 4)),  # turns that had not ended then left their numbers
    ],
)
def test_turns_before_a_new_conversation_stay_hidden(
    engine: Engine, last: str | None, fresh_seq: int, shown: tuple[int, int]
) -> None:
    fill(engine, 3, fresh_from=2, fresh_seq=fresh_seq)
    made = copy(engine, last)
    assert (made["fresh_from"], made["fresh_seq"]) == shown


def test_merged_turn_refers_to_the_copied_turn(engine: Engine) -> None:
    fill(engine, 3)
    change(engine, "t2", merged_into="t1", merged_step=1)
    change(engine, "t3", merged_into="elsewhere")
    copy(engine)
    merged = [(row["id"], row["merged_into"], row["merged_step"]) for row in rows_of(engine, turns, "f-copy")]
    assert merged == [("c1", None, None), ("c2", "c1", None), ("c3", None, None)]


def test_unfinished_turns_are_not_copied(engine: Engine) -> None:
    fill(engine, 3)
    change(engine, "t1", state="queued")
    change(engine, "t3", state="running")
    copy(engine)
    assert [row["seq"] for row in rows_of(engine, turns, "f-copy")] == [2]
    for turn_id in ("t1", "t3"):
        with pytest.raises(NotEnded):
            copy(engine, turn_id, channel="other")


def test_fork_of_a_session_without_ended_turns_is_empty(engine: Engine) -> None:
    fill(engine, 1)
    change(engine, "t1", state="running")
    made = copy(engine)
    assert (made["next_seq"], rows_of(engine, turns, made["id"])) == (1, [])


def test_refused_fork_leaves_nothing(engine: Engine) -> None:
    fill(engine, 3)
    with pytest.raises(NotFound):
        copy(engine, owner="user:ana")
    with pytest.raises(NotFound):
        copy(engine, "unknown")
    with pytest.raises(ChannelTaken):
        copy(engine, channel="home")
    with pytest.raises(Conflict, match="More than 2 turns or 100,000 bytes"):
        copy(engine, most=2)
    assert len(rows_of(engine, turns, "s")) == 3
    with engine.begin() as connection:
        assert connection.execute(sa.select(sessions.c.id)).scalars().all() == ["s"]
    assert copy(engine, "t2", most=2)["next_seq"] == 3


@pytest.mark.parametrize("of_the_third", [{"content": "é" * 500}, {"reply": "é" * 500}, {"body": b"x" * 1_000}])
def test_fork_over_the_byte_limit_is_refused(engine: Engine, of_the_third: dict[str, Any]) -> None:
    fill(engine, 3)
    table, key = (history, history.c.turn_id) if "body" in of_the_third else (turns, turns.c.id)
    with engine.begin() as connection:
        connection.execute(sa.update(table).where(key == "t3").values(**of_the_third))

    with pytest.raises(Conflict, match="More than 100 turns or 1,000 bytes"):
        copy(engine, most_bytes=1_000)
    assert rows_of(engine, turns, "f-copy") == []
    assert len(rows_of(engine, turns, copy(engine, "t2", most_bytes=1_000)["id"])) == 2
