"""Erasure during concurrent events: other messages, readers of the database file, a crash."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.assembling import erasure_over

from torana.agent import Answer, Emit, TurnAgent
from torana.agent.journal import Journal
from torana.errors import Conflict, StoreUnavailable
from torana.messages import Inbound, Turn, utc_now
from torana.people.erasure import Erasure
from torana.people.pairing import Pairing
from torana.people.tokens import NewToken, Tokens
from torana.sessions import Sessions
from torana.store.backup.erasure import erase
from torana.store.engine.database import Database
from torana.store.engine.sqlite import SqliteDatabase
from torana.store.engine.tables import audit, history, memories, senders, sessions, tombstones, turns
from torana.store.rows import session_deletion
from torana.store.rows.audit import Act, list_entries
from torana.store.rows.deliveries import add_notice, record_sent
from torana.store.rows.senders import Asker
from torana.store.rows.workspace_files import owner_key
from torana.store.workspace_folders import WORKSPACES_NAME
from torana.store.workspaces import Workspaces
from torana.testing import Faults, MortalDatabase, ScriptedModel
from torana.turns import SessionChanges, Turns, outcomes

T = TypeVar("T")

TURNS = turns

ACT = Act(principal="operator", source="127.0.0.1", at=utc_now())
YES = ["yes"] * 400


async def never(_seconds: float) -> None:
    raise AssertionError("there is nothing to wait for")


@pytest.fixture
def erasure(path: Path) -> Callable[..., Erasure]:
    """``erasure(database, turns, pause)`` erases from a database and its turns."""

    def make(database: Database, turns: Turns, pause: Callable[[float], Awaitable[None]] = never) -> Erasure:
        return erasure_over(database, turns, data_dir=path.parent, pause=pause)

    return make


def bytes_of(path: Path) -> bytes:
    """Return all bytes of all files beside the database."""
    return b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


def count_rows(connection: Connection) -> dict[str, int]:
    tables = (sessions, turns, history, memories, tombstones, audit)
    return {t.name: connection.execute(sa.select(sa.func.count()).select_from(t)).scalar_one() for t in tables}


async def die_while_erasing(erasure: Erasure, mortal: MortalDatabase, faults: Faults) -> None:
    """Erase ana until the process dies, and close its database."""
    task = asyncio.create_task(erasure.erase("ana", ACT))
    await faults.death()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    mortal.close()


class Interrupted(SqliteDatabase):
    """A database that runs an event before its erasing transactions, or before others."""

    def __init__(
        self,
        *,
        path: Path,
        events: Iterator[Callable[[], Awaitable[object]]],
        before: Callable[..., object] = erase,
    ) -> None:
        super().__init__(path=path)
        self._events = events
        self._before = before

    async def run(self, work: Callable[[Connection], T]) -> T:
        function = getattr(work, "func", None)
        if function is self._before and (event := next(self._events, None)):
            await event()
        return await super().run(work)


class Slow:
    """An agent that answers the message "early" and no other."""

    async def run(self, turn: Turn, _emit: Emit, _journal: Journal) -> Answer:
        if turn.content != "early":
            await asyncio.Event().wait()
        return Answer(reply="yes", model="m", history=(b"[]", 0))


# --- messages that arrive during the erasure


async def test_message_accepted_before_the_delete_is_erased(
    path: Path,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    message: Callable[..., Inbound],
    say: Callable[..., Awaitable[Any]],
):
    late = message("late", channel="c", user="ana")
    database = Interrupted(path=path, events=iter([lambda: turns.accept(late)]))
    turns = open_turns(agent=Slow(), database=database)
    await say(turns, "early", channel="c", user="ana")

    receipt = await erasure(database, turns).erase("ana", ACT)

    assert (receipt.counts.turns, receipt.counts.sessions) == (2, 1)
    left = await database.run(count_rows)
    assert (left["turns"], left["sessions"], left["history"], left["tombstones"]) == (0, 0, 0, 2)
    assert (await say(turns, "/status", channel="c", user="ana")).reply == "Running here: 0. Waiting: 0."
    database.close()


async def test_message_accepted_after_the_delete_is_answered(
    path: Path,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    message: Callable[..., Inbound],
    database: Database,
):
    turns = open_turns(ScriptedModel(*YES))
    before = [turns.accept(message(f"{n}", channel="c", user="ana")) for n in range(5)]
    erasing = erasure(database, turns).erase("ana", ACT)
    behind = [turns.accept(message(f"later {n}", channel="c", user="ana")) for n in range(5)]
    _, receipt, _ = await asyncio.gather(asyncio.gather(*before), erasing, asyncio.gather(*behind))
    stayed = await database.run(lambda c: c.execute(sa.select(TURNS.c.id)).scalars().all())
    assert receipt.counts.turns + len(stayed) == 10
    for turn_id in stayed:
        assert (await turns.reader.wait_for_end(await turns.reader.get("gateway", turn_id))).reply == "yes"
    kept = await database.run(count_rows)
    assert (kept["history"], kept["sessions"]) == (len(stayed), 1 if stayed else 0)


async def test_unending_messages_cause_a_conflict_and_erase_nothing(
    path: Path,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    message: Callable[..., Inbound],
):
    database = Interrupted(
        path=path, events=iter(lambda: lambda: turns.accept(message("again", channel="c", user="ana")), None)
    )
    turns = open_turns(agent=Slow(), database=database)
    held = Tokens(database=database)
    secret = (await held.create(NewToken(user="ana"), act=ACT)).secret
    with pytest.raises(Conflict, match="Stop the client that sends"):
        await erasure(database, turns).erase("ana", ACT)
    left = await database.run(count_rows)
    assert (left["turns"], left["tombstones"]) == (10, 0)
    assert await held.authenticate(secret) is None
    assert {entry.action for entry in await database.run(partial(list_entries, before=None, limit=9))} == {
        "token.create",
        "token.revoke",
    }
    await turns.stop(grace=0)
    database.close()


# --- many turns


@pytest.mark.parametrize(("bound", "most", "earlier"), [("", 2, 2), ("_BYTES", 1, 4)])
async def test_many_turns_are_erased_in_several_transactions(
    path: Path,
    database: Database,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    say: Callable[..., Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    most: int,
    earlier: int,
):
    monkeypatch.setattr(session_deletion, f"_MOST{bound}", most)
    deletes = Mock(wraps=session_deletion.delete_turns)
    monkeypatch.setattr(session_deletion, "delete_turns", deletes)
    turns = open_turns(ScriptedModel(*YES))
    for channel in ("room", "attic", "room", "attic", "room"):
        await say(turns, "a secret of ana's", channel=channel, user="ana")
    await say(turns, "a secret of ben's", channel="room", user="ben")

    receipt = await erasure(database, turns).erase("ana", ACT)

    assert (receipt.counts.turns, receipt.counts.sessions) == (5, 1)
    assert deletes.call_count == earlier
    left = await database.run(count_rows)
    assert (left["turns"], left["sessions"], left["tombstones"]) == (1, 1, 5)
    speakers = await database.run(lambda c: c.execute(sa.select(sessions.c.speaker)).scalars().all())
    assert speakers == ["ben"]
    entries = await database.run(partial(list_entries, before=None, limit=9))
    assert [(entry.action, entry.detail.get("turns")) for entry in entries] == [
        ("user.erase", 5),
        ("user.erase", None),
    ]
    assert b"a secret of ana's" not in bytes_of(path)


async def test_interrupted_erasure_of_many_turns_completes_on_retry(
    path: Path,
    open_turns: Callable[..., Turns],
    open_database: Callable[[], Database],
    erasure: Callable[..., Erasure],
    say: Callable[..., Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(session_deletion, "_MOST", 1)
    faults = Faults(die_at="erase_some_turns 2 after its commit")
    mortal = MortalDatabase(path=path, faults=faults)
    first = open_turns(ScriptedModel(*YES), database=mortal)
    for channel in ("attic", "attic", "cellar", "cellar"):
        await say(first, "a secret of ana's", channel=channel, user="ana")
    await die_while_erasing(erasure(mortal, first), mortal, faults)

    database = open_database()
    left = await database.run(count_rows)
    assert (left["turns"], left["tombstones"], left["audit"]) == (2, 2, 1)
    receipt = await erasure(database, open_turns(ScriptedModel(), database=database)).erase("ana", ACT)

    assert receipt.counts.turns == 2
    left = await database.run(count_rows)
    assert (left["turns"], left["sessions"], left["tombstones"]) == (0, 0, 4)
    assert b"a secret of ana's" not in bytes_of(path)


async def test_session_deleted_concurrently_does_not_stop_the_erasure(
    path: Path,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    message: Callable[..., Inbound],
    say: Callable[..., Awaitable[Any]],
):
    running: list[Turn] = []
    database = Interrupted(path=path, events=iter([lambda: delete(running[0])]), before=outcomes.cancel)
    turns = open_turns(agent=Slow(), database=database)
    sessions = Sessions(database=database, history_messages=40)
    changes = SessionChanges(database=database, sessions=sessions, turns=turns)

    async def delete(turn: Turn) -> None:
        await changes.delete("gateway", turn.session_id)

    await say(turns, "early", channel="other", user="ana")
    running.append(await turns.accept(message("hello", channel="c", user="ana")))

    receipt = await erasure(database, turns).erase("ana", ACT)

    assert (receipt.counts.turns, receipt.counts.sessions) == (1, 1)
    left = await database.run(count_rows)
    assert (left["turns"], left["sessions"], left["tombstones"]) == (0, 0, 2)
    database.close()


@pytest.mark.parametrize("user", [None, "ana"])
async def test_erasing_a_denied_sender_keeps_only_the_denial(
    path: Path,
    database: Database,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    user: str | None,
):
    pairing = Pairing(database=database, clock=utc_now)
    for sender in ("1", "2"):
        asker = Asker(
            kind="telegram", sender=sender, account="home", place='{"chat": "attic"}', name="Anabel B."
        )
        assert await pairing.ask(asker)
        await pairing.approve(f"telegram:{sender}", user=user, kinds=("telegram",), act=ACT)
    await pairing.deny("telegram:1", kinds=("telegram",), act=ACT)

    erases = erasure(database, open_turns(ScriptedModel()))
    for who in [user] if user else ["telegram:1", "telegram:2"]:
        await erases.erase(who, ACT)

    bare = Asker(kind="telegram", sender="1", account="", place="", name="")
    (left,) = await pairing.list_senders()
    assert (left.asker, left.state) == (bare, "denied")
    assert await database.run(lambda c: c.execute(sa.select(senders.c.user)).scalars().all()) == [None]
    assert b"Anabel B." not in bytes_of(path)
    assert b"attic" not in bytes_of(path)


async def test_notices_are_erased_whether_sent_or_pending(
    path: Path, database: Database, open_turns: Callable[..., Turns], erasure: Callable[..., Erasure]
):
    for number, place in enumerate(("attic@example.org", "cellar@example.org"), start=1):
        tell = partial(add_notice, account="mail", line=place, place=place, text="Slower, please.", at=ACT.at)
        await database.run(tell)
        if number == 1:
            await database.run(partial(record_sent, number=number, shown_as="m1", at=ACT.at))

    await erasure(database, open_turns(ScriptedModel())).erase("ana", ACT)

    assert not [word for word in (b"attic", b"cellar", b"Slower") if word in bytes_of(path)]


async def test_files_of_the_workspace_are_erased(
    path: Path,
    database: Database,
    workspaces: Workspaces,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
):
    await workspaces.write("ana", "plan.txt", b"buy figs")
    await workspaces.write("ben", "plan.txt", b"buy dates")
    folder = path.parent / WORKSPACES_NAME / owner_key("ana")  # of an earlier version
    folder.mkdir(parents=True)
    (folder / "plan.txt").write_text("buy figs")

    receipt = await erasure(database, open_turns(ScriptedModel())).erase("ana", ACT)

    assert receipt.files == 1
    assert b"buy figs" not in bytes_of(path)
    assert b"buy dates" in bytes_of(path)


# --- readers of the database file


async def test_erasure_waits_for_a_reader_to_finish(
    path: Path,
    database: Database,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    say: Callable[..., Awaitable[Any]],
):
    turns = open_turns(ScriptedModel("yes"))
    await say(turns, "a secret of Ana's", channel="c", user="ana")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM turns").fetchone()

        async def let_go(_seconds: float) -> None:
            assert b"a secret of Ana's" in bytes_of(path)
            reader.execute("ROLLBACK")

        await erasure(database, turns, let_go).erase("ana", ACT)
    assert b"a secret of Ana's" not in bytes_of(path)


async def test_erasure_fails_while_a_reader_stays(
    path: Path,
    database: Database,
    open_turns: Callable[..., Turns],
    erasure: Callable[..., Erasure],
    say: Callable[..., Awaitable[Any]],
):
    turns = open_turns(ScriptedModel("yes"))
    await say(turns, "a secret of Ana's", channel="c", user="ana")

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM turns").fetchone()
        with pytest.raises(StoreUnavailable, match="Erase again"):
            await erasure(database, turns, at_once).erase("ana", ACT)
    await erasure(database, turns).erase("ana", ACT)
    assert b"a secret of Ana's" not in bytes_of(path)


async def test_rewrite_removes_rows_that_moved_between_pages(database: Database, path: Path):
    """Overwriting deleted rows is not enough: this test fails without ``rewrite``."""
    chance = random.Random(1)

    def fill(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE notes (id TEXT PRIMARY KEY, who TEXT, text TEXT)")
        for _ in range(3000):
            word = chance.choice(["MARKER", "nothing"])
            text = word * chance.choice([1, 10, 40, 120, 500])
            row = (str(chance.random()), word, text)
            connection.exec_driver_sql("INSERT INTO notes VALUES (?, ?, ?)", row)

    await database.run(fill)
    await database.run(lambda c: c.exec_driver_sql("DELETE FROM notes WHERE who = 'MARKER'").close())
    await database.rewrite()
    assert await database.empty_log()
    assert b"MARKER" not in bytes_of(path)
    assert b"nothing" in bytes_of(path)


# --- a crash during the erasure


PLACES = ("unfinished_turns 1", "erase 1", "erased_among 1")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("place", PLACES)
async def test_erasure_is_atomic_in_a_crash_and_completes_on_retry(
    path: Path,
    open_agent: Callable[..., TurnAgent],
    open_turns: Callable[..., Turns],
    open_database: Callable[[], Database],
    erasure: Callable[..., Erasure],
    say: Callable[..., Awaitable[Any]],
    place: str,
    moment: str,
):
    faults = Faults(die_at=f"{place} {moment} its commit")
    mortal = MortalDatabase(path=path, faults=faults)
    first = open_turns(ScriptedModel(*YES), database=mortal)
    for user in ("ana", "ben"):
        await say(first, f"a secret of {user}'s", channel="room", user=user)
    await die_while_erasing(erasure(mortal, first), mortal, faults)

    database = open_database()
    done = place == "erased_among 1" or (place, moment) == ("erase 1", "after")
    left = await database.run(count_rows)
    assert (left["turns"], left["tombstones"], left["audit"]) == ((1, 1, 1) if done else (2, 0, 0))
    turns = open_turns(ScriptedModel(*YES), database=database)
    await erasure(database, turns).erase("ana", ACT)

    assert b"a secret of ana's" not in bytes_of(path)
    assert b"a secret of ben's" in bytes_of(path)
    left = await database.run(count_rows)
    assert (left["turns"], left["tombstones"]) == (1, 1)
