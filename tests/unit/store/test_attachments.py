"""Rows of files, which are stored with their turn and deleted with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from torana.errors import SessionBusy
from torana.messages import EVERYONE, File, Inbound
from torana.store.backup.user_data import UserData
from torana.store.engine.tables import attachments
from torana.store.rows import attachments as rows
from torana.store.rows import turns
from torana.store.rows.session_deletion import delete
from torana.store.rows.session_forks import NewSession, fork
from torana.store.rows.turns import Ending, NewTurn

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
FILES = tuple(File(name=f"{n}.txt", media_type="text/plain", body=b"x" * n) for n in range(12))


@pytest.fixture
def take(message: Callable[..., Inbound]) -> Callable[..., turns.Turn]:
    """``take(connection, "t1", files=FILES)`` accepts a message from ana."""

    def accept(connection: Connection, turn_id: str, **said: object) -> turns.Turn:
        inbound = message(user="ana", **said)
        new = NewTurn(turn_id=turn_id, session_id="s", channel="home", at=AT)
        return turns.accept(connection, inbound, new, hold=False).turn

    return accept


def count_files(connection: Connection) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(attachments)).scalar_one()


def test_files_are_read_in_order_and_only_by_their_owner(
    engine: Engine, take: Callable[..., turns.Turn]
) -> None:
    with engine.begin() as connection:
        turn = take(connection, "t1", files=FILES)
        take(connection, "t2", files=FILES[:1])
        assert turn.files == 12
        assert turns.get(connection, "gateway", "t1") == turn
        assert rows.of_turn(connection, "gateway", "t1") == list(FILES)
        assert rows.of_turn(connection, EVERYONE, "t1") == list(FILES)
        assert rows.of_turn(connection, "user:eve", "t1") == []
        assert sorted(rows.sizes(connection, "t1")) == [("text/plain", n) for n in range(12)]


def test_refused_message_stores_no_files(engine: Engine, take: Callable[..., turns.Turn]) -> None:
    with engine.begin() as connection:
        take(connection, "t1")
    with pytest.raises(SessionBusy), engine.begin() as connection:
        take(connection, "t2", files=FILES, on_busy="reject")
    with engine.begin() as connection:
        assert count_files(connection) == 0


def test_deleting_a_session_deletes_its_files(engine: Engine, take: Callable[..., turns.Turn]) -> None:
    with engine.begin() as connection:
        turn = take(connection, "t1", files=FILES)
        turns.finish(connection, turn, Ending(at=AT, state="failed"), hold=True)
        assert count_files(connection) == 12
        delete(connection, "gateway", "s", at=AT)
        assert count_files(connection) == 0


def test_forked_session_has_no_files(engine: Engine, take: Callable[..., turns.Turn]) -> None:
    numbers = count()
    new = NewSession(
        session_id="f", channel="copy", at=AT, turn_id=lambda: f"c{next(numbers)}", title_of=lambda _: None
    )
    with engine.begin() as connection:
        turn = take(connection, "t1", content="look\n[file: 0.txt]", files=FILES)
        turns.finish(connection, turn, Ending(at=AT, state="failed"), hold=True)
        fork(connection, "gateway", "s", last=None, new=new)
        copied = turns.get(connection, "gateway", "c0")
        assert copied is not None
        assert (copied.content, copied.files) == ("look\n[file: 0.txt]", 0)
        assert rows.of_turn(connection, "gateway", "c0") == []
        assert count_files(connection) == 12


def test_user_data_contains_only_the_users_own_files(engine: Engine, take: Callable[..., turns.Turn]) -> None:
    with engine.begin() as connection:
        take(connection, "t1", files=FILES[:2])
        take(connection, "t2", files=FILES[2:4])
        connection.execute(sa.update(turns.turns).where(turns.turns.c.id == "t2").values(user="ben"))
        assert [row["name"] for row in UserData(connection, "ana").attachments()] == ["0.txt", "1.txt"]
        assert [row["name"] for row in UserData(connection, "ben").attachments()] == ["2.txt", "3.txt"]


def test_files_are_deleted_when_the_turn_completes_not_when_it_fails(
    engine: Engine, take: Callable[..., turns.Turn]
) -> None:
    with engine.begin() as connection:
        turn = take(connection, "t1", files=FILES)
        (failed,), _ = turns.finish(connection, turn, Ending(at=AT, state="failed"), hold=True)
        assert count_files(connection) == 12
        turns.finish(connection, replace(failed, state="running"), Ending(at=AT), hold=True)
        assert count_files(connection) == 0
