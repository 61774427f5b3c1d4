"""Changes of sessions: fork, reset and delete; and titles from the first message."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ModelMessage, ToolCallPart, UserPromptPart
from pydantic_ai.models.fallback import FallbackModel
from tests.assembling import turns_over

from torana.agent import Answer, Emit
from torana.agent.journal import Journal
from torana.app import App
from torana.errors import ModelFailed, NotFound, SessionBusy
from torana.messages import Inbound, Turn, owner_of, utc_now
from torana.models.builtin import BuiltinModel
from torana.models.providers import without_builtin
from torana.sessions import Sessions
from torana.store.engine.database import T
from torana.store.engine.sqlite import SqliteDatabase, sqlite_engine
from torana.store.engine.tables import calls, history, keys, sessions, steps
from torana.store.engine.tables import turns as turn_rows
from torana.store.rows import session_deletion
from torana.testing import ScriptedModel
from torana.turns import SessionChanges, Turns, outcomes

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]


async def say(client: httpx2.AsyncClient, content: str, channel: str = "home", **more: Any) -> dict[str, Any]:
    answer = await client.post("/message", json={"content": content, "channelId": channel, **more})
    return answer.json()


async def contents(client: httpx2.AsyncClient, session_id: str) -> list[str]:
    answer = await client.get(f"/v1/sessions/{session_id}/messages", params={"limit": 200})
    return [item["content"] for item in answer.json()["items"]]


async def only_session(client: httpx2.AsyncClient) -> dict[str, Any]:
    [session] = (await client.get("/v1/sessions")).json()["items"]
    return session


def prompts(messages: tuple[ModelMessage, ...]) -> list[object]:
    return [part.content for m in messages for part in m.parts if isinstance(part, UserPromptPart)]


async def rows_left(app: App) -> dict[str, int]:
    tables = (sessions, turn_rows, history, steps, calls)

    def count(connection: sa.Connection) -> dict[str, int]:
        of = {table.name: sa.select(sa.func.count()).select_from(table) for table in tables}
        return {name: connection.execute(query).scalar_one() for name, query in of.items()}

    return await app.database.run(count)


async def until(app: App, *, turns: int) -> None:
    """Wait until this number of messages was accepted."""
    while (await rows_left(app))["turns"] < turns:
        pass


async def belongs_to(app: App, owner: str, content: str = "hers") -> str:
    """Create a session of another user, with one turn."""
    inbound = Inbound(owner=owner, principal="token:t", content=content, channel="home")
    return (await app.turns.reader.wait_for_end(await app.turns.accept(inbound))).session_id


# --- titles


async def test_session_title_is_its_first_message(client: httpx2.AsyncClient):
    await say(client, "/status")
    assert (await only_session(client))["title"] is None  # no message reached the agent yet
    await say(client, "\n  Plan my\ttrip to Porto\x07  \nwith details")
    await say(client, "and then?")
    session = await only_session(client)
    assert session["title"] == "Plan my trip to Porto"
    assert (await client.get(f"/v1/sessions/{session['id']}")).json()["title"] == "Plan my trip to Porto"


# --- fork


class OneAtATime:
    """Session changes that fail if two of them happen at a time."""

    def __init__(self, changes: SessionChanges) -> None:
        self._changes = changes
        self._is_busy = False

    async def fork(self, *arguments: Any, **more: Any) -> Any:
        return await self._alone(self._changes.fork(*arguments, **more))

    async def delete(self, *arguments: Any, **more: Any) -> Any:
        return await self._alone(self._changes.delete(*arguments, **more))

    async def _alone(self, change: Awaitable[Any]) -> Any:
        assert not self._is_busy
        self._is_busy = True
        try:
            return await change
        finally:
            self._is_busy = False


async def test_sessions_of_a_user_are_copied_and_deleted_one_at_a_time(start: Start):
    """Each may be a transaction of a second, and the transactions of other users wait for all before them."""
    app, client = await start()
    first = await say(client, "hello")
    object.__setattr__(app.services, "changes", OneAtATime(app.services.changes))

    path = f"/v1/sessions/{first['sessionId']}/fork"
    copies = await asyncio.gather(*(client.post(path, json={}) for _ in range(5)))
    places = [f"/v1/sessions/{copy.json()['id']}" for copy in copies]
    deleted = await asyncio.gather(*map(client.delete, places))

    assert {answer.status_code for answer in copies} == {201}
    assert {answer.status_code for answer in deleted} == {200}


async def test_fork_and_its_source_continue_separately(start: Start):
    model = ScriptedModel("one", "two", "three", "in the source", "in the fork")
    _, client = await start(model)
    first, second, third = [await say(client, content) for content in "abc"]
    answer = await client.post(f"/v1/sessions/{first['sessionId']}/fork", json={"turnId": second["id"]})
    assert answer.status_code == 201
    fork = answer.json()
    assert fork["id"] != first["sessionId"]
    assert (fork["turns"], fork["title"]) == (2, "a")
    assert await contents(client, fork["id"]) == ["a", "one", "b", "two"]

    await say(client, "d")
    beside = await say(client, "e", channel=fork["channelId"])

    assert beside["sessionId"] == fork["id"]
    assert await contents(client, fork["id"]) == ["a", "one", "b", "two", "e", "in the fork"]
    in_source = ["a", "one", "b", "two", "c", "three", "d", "in the source"]
    assert await contents(client, third["sessionId"]) == in_source
    assert prompts(model.requests[-1].messages) == ["a", "b", "e"]
    assert prompts(model.requests[-2].messages) == ["a", "b", "c", "d"]


async def test_copied_turns_have_new_ids_and_no_usage(client: httpx2.AsyncClient):
    original = await say(client, "a", userId="ana")
    fork = (await client.post(f"/v1/sessions/{original['sessionId']}/fork")).json()
    items = (await client.get(f"/v1/sessions/{fork['id']}/messages")).json()["items"]
    copy = (await client.get(f"/v1/turns/{items[0]['turnId']}")).json()
    assert original["usage"]["inputTokens"] > 0
    assert copy["id"] != original["id"]
    assert copy["usage"] == {
        "inputTokens": 0,
        "outputTokens": 0,
        "costUsd": 0,
        "estimatedInput": {"instructions": 0, "tools": 0, "history": 0},
    }
    kept = ("reply", "userId", "status", "model", "createdAt")
    assert {name: copy[name] for name in kept} == {name: original[name] for name in kept}
    assert (copy["sessionId"], copy["channelId"]) == (fork["id"], fork["channelId"])


async def test_fork_ends_with_last_ended_turn(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel("one", [gate, "two"]))
    first = await say(client, "a")
    running = asyncio.ensure_future(say(client, "b"))
    await until(app, turns=2)
    fork = (await client.post(f"/v1/sessions/{first['sessionId']}/fork")).json()
    assert await contents(client, fork["id"]) == ["a", "one"]
    last = (await client.get(f"/v1/sessions/{first['sessionId']}/messages")).json()["items"][-1]
    refused = await client.post(f"/v1/sessions/{first['sessionId']}/fork", json={"turnId": last["turnId"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "not_ended")
    gate.set()
    await running


async def test_journal_of_failed_turn_is_not_copied(start: Start):
    script = [[ToolCallPart("calculate", {"expression": "1+1"})], [ModelFailed("no")], "again"]
    app, client = await start(ScriptedModel(*script))
    await say(client, "a")
    session = await only_session(client)
    before = await rows_left(app)
    assert (before["steps"], before["calls"]) == (1, 1)
    fork = (await client.post(f"/v1/sessions/{session['id']}/fork")).json()
    after = await rows_left(app)
    assert (after["steps"], after["calls"], after["turns"]) == (1, 1, 2)
    assert await contents(client, fork["id"]) == ["a"]


async def test_fork_gets_named_channel_unless_channel_is_taken(client: httpx2.AsyncClient):
    first = await say(client, "a")
    path = f"/v1/sessions/{first['sessionId']}/fork"
    fork = await client.post(path, json={"channelId": 42})
    assert (fork.status_code, fork.json()["channelId"]) == (201, "42")
    for taken in ("home", 42):
        refused = await client.post(path, json={"channelId": taken})
        assert (refused.status_code, refused.json()["code"]) == (409, "channel_taken")
    assert len((await client.get("/v1/sessions")).json()["items"]) == 2


async def test_messages_hidden_by_reset_stay_hidden_in_later_fork(start: Start):
    model = ScriptedModel("one", "two", "three", "four")
    _, client = await start(model)
    first = await say(client, "a")
    await client.post(f"/v1/sessions/{first['sessionId']}/reset")
    await say(client, "b")
    path = f"/v1/sessions/{first['sessionId']}/fork"
    whole, early = await client.post(path), await client.post(path, json={"turnId": first["id"]})
    await say(client, "c", channel=whole.json()["channelId"])
    assert prompts(model.requests[-1].messages) == ["b", "c"]
    await say(client, "d", channel=early.json()["channelId"])
    assert prompts(model.requests[-1].messages) == ["a", "d"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"turnId": "turn_unknown"}, 404, "not_found"),
        ({"turnId": 7}, 400, "invalid_field"),
        ({"turnId": ["x"]}, 400, "invalid_field"),
        ({"channelId": True}, 400, "invalid_field"),
        ({"channelId": "x" * 257}, 400, "invalid_field"),
        ({"turnId": "a\0b"}, 400, "invalid_text"),
        ([], 400, "invalid_json"),
    ],
)
async def test_impossible_fork_is_refused(client: httpx2.AsyncClient, body: object, status: int, code: str):
    first = await say(client, "a")
    answer = await client.post(f"/v1/sessions/{first['sessionId']}/fork", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    await only_session(client)


async def test_fork_at_turn_of_other_session_is_404(client: httpx2.AsyncClient):
    first, other = await say(client, "a"), await say(client, "b", channel="other")
    answer = await client.post(f"/v1/sessions/{first['sessionId']}/fork", json={"turnId": other["id"]})
    assert answer.status_code == 404


# --- reset


async def test_reset_hides_earlier_messages_from_model_and_keeps_them_stored(start: Start):
    model = ScriptedModel("one", "two")
    _, client = await start(model)
    first = await say(client, "a")
    answer = await client.post(f"/v1/sessions/{first['sessionId']}/reset")
    assert (answer.status_code, answer.json()["id"]) == (200, first["sessionId"])
    again = await say(client, "b")
    assert again["sessionId"] == first["sessionId"]
    assert prompts(model.requests[-1].messages) == ["b"]
    assert await contents(client, first["sessionId"]) == ["a", "one", "b", "two"]


# --- delete


async def test_deleted_session_leaves_only_erased_turns(start: Start):
    script = ["yes", [ToolCallPart("calculate", {"expression": "1+1"})], [ModelFailed("no")], "kept", "new"]
    app, client = await start(ScriptedModel(*script))
    first = await say(client, "a")
    await say(client, "b")
    other = await say(client, "c", channel="other")

    answer = await client.delete(f"/v1/sessions/{first['sessionId']}")

    assert answer.status_code == 200
    assert answer.json() == {"id": first["sessionId"], "turns": 2, "idempotencyKeys": 0}
    assert await rows_left(app) == {"sessions": 1, "turns": 1, "history": 1, "steps": 0, "calls": 0}
    for path in ("", "/messages", "/export"):
        assert (await client.get(f"/v1/sessions/{first['sessionId']}{path}")).status_code == 404
    assert (await client.delete(f"/v1/sessions/{first['sessionId']}")).status_code == 404
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")):
        gone = await client.request(method, f"/v1/turns/{first['id']}{path}")
        assert (gone.status_code, gone.json()["code"]) == (410, "erased")
    assert (await client.get(f"/v1/turns/{other['id']}")).status_code == 200
    assert (await client.get("/v1/turns/turn_unknown")).status_code == 404


@pytest.mark.parametrize(("bound", "most", "expected"), [("", 2, [2, 2, 1]), ("_BYTES", 1, [1, 1, 1, 1, 1])])
async def test_long_session_is_deleted_in_several_transactions(
    start: Start, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, expected: list[int]
):
    """Transactions of other users wait for each of them."""
    monkeypatch.setattr(session_deletion, f"_MOST{bound}", most)
    app, client = await start()
    (session_id,) = {await belongs_to(app, owner_of("ana")) for _ in range(5)}
    turns = [turn["id"] for turn in (await client.get("/v1/turns")).json()["items"]]
    seen: list[int] = []
    delete_turns = session_deletion.delete_turns

    def note(*arguments: Any) -> session_deletion.Deleted:
        deleted = delete_turns(*arguments)
        seen.append(len(deleted.turns))
        return deleted

    monkeypatch.setattr(session_deletion, "delete_turns", note)
    answer = await client.delete(f"/v1/sessions/{session_id}")

    assert answer.json() == {"id": session_id, "turns": 5, "idempotencyKeys": 0}
    assert seen == expected
    assert await rows_left(app) == {"sessions": 0, "turns": 0, "history": 0, "steps": 0, "calls": 0}
    for turn_id in turns:
        assert (await client.get(f"/v1/turns/{turn_id}")).json()["code"] == "erased"
    entries = (await client.get("/v1/audit")).json()["items"]
    assert [entry["action"] for entry in entries].count("session.delete") == 1


async def test_channel_of_deleted_session_can_be_reused(start: Start):
    model = ScriptedModel("one", "two")
    _, client = await start(model)
    first = await say(client, "a")
    await client.delete(f"/v1/sessions/{first['sessionId']}")
    second = await say(client, "b")
    assert second["sessionId"] != first["sessionId"]
    assert prompts(model.requests[-1].messages) == ["b"]
    assert (await only_session(client))["title"] == "b"


async def test_running_and_queued_turns_are_cancelled_before_deletion(start: Start):
    model = ScriptedModel([asyncio.Event()])
    app, client = await start(model)
    callers = [asyncio.ensure_future(client.post("/message", json={"content": "a", "channelId": "home"}))]
    await until(app, turns=1)
    callers.append(asyncio.ensure_future(client.post("/message", json={"content": "b", "channelId": "home"})))
    await until(app, turns=2)
    session = await only_session(client)

    answer = await client.delete(f"/v1/sessions/{session['id']}")

    assert answer.json()["turns"] == 2
    for caller in callers:
        told = await caller
        assert (told.status_code, told.json()["code"]) == (409, "turn_cancelled")
    assert len(model.requests) <= 1  # the queued turn was not started
    assert (await rows_left(app))["turns"] == 0


async def test_message_during_deletion_is_stored_whole_or_not_at_all(start: Start):
    app, client = await start()
    first = await say(client, "a")
    path = f"/v1/sessions/{first['sessionId']}"
    answers = await asyncio.gather(
        *(client.post("/message", json={"content": "b", "channelId": "home"}) for _ in range(8)),
        client.delete(path),
        *(client.post("/message", json={"content": "c", "channelId": "home"}) for _ in range(8)),
        client.delete(path),
    )
    assert sorted(answer.status_code for answer in answers if answer.request.method == "DELETE") == [200, 404]
    for answer in answers:
        if answer.request.method == "POST" and answer.status_code == 200:
            turn = await client.get(f"/v1/turns/{answer.json()['id']}")
            assert turn.status_code in (200, 410)
        elif answer.request.method == "POST":
            assert answer.json()["code"] == "turn_cancelled"
    left = await rows_left(app)
    assert left["sessions"] <= 1
    assert left["history"] == left["turns"]


async def test_key_of_deleted_turn_is_erased_without_trace_of_message(start: Start):
    app, client = await start()
    headers = {"Idempotency-Key": "k"}
    body = {"content": "a", "channelId": "home"}
    first = (await client.post("/message", json=body, headers=headers)).json()
    deleted = await client.delete(f"/v1/sessions/{first['sessionId']}")
    assert deleted.json()["idempotencyKeys"] == 1
    for content in ("a", "something else"):
        again = await client.post("/message", json={**body, "content": content}, headers=headers)
        assert (again.status_code, again.json()["code"]) == (410, "erased")
    prints = await app.database.run(lambda c: c.execute(sa.select(keys.c.fingerprint)).scalars().all())
    assert prints == [b""]
    assert (await rows_left(app))["turns"] == 0


@pytest.mark.parametrize("method", ["fork", "reset", "delete"])
async def test_operator_changes_sessions_of_other_owners(gateway: Gateway, method: str):
    app, client = gateway
    session_id = await belongs_to(app, owner_of("ana"))
    if method == "delete":
        assert (await client.delete(f"/v1/sessions/{session_id}")).status_code == 200
        return
    answer = await client.post(f"/v1/sessions/{session_id}/{method}")
    owners = await app.database.run(lambda c: c.execute(sa.select(sessions.c.owner)).scalars().all())
    assert answer.is_success
    assert set(owners) == {owner_of("ana")}


async def test_session_of_other_owner_is_unknown(gateway: Gateway):
    app, _ = gateway
    session_id = await belongs_to(app, owner_of("ana"))
    sessions = Sessions(database=app.database, history_messages=40)
    changes = SessionChanges(database=app.database, sessions=sessions, turns=app.turns)
    for change in (
        changes.fork("user:ben", session_id, turn_id=None, channel=None),
        changes.reset("user:ben", session_id),
        changes.delete("user:ben", session_id),
    ):
        with pytest.raises(NotFound):
            await change


class Silent:
    """An agent that never answers."""

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")


class Talkative(SqliteDatabase):
    """Accepts a given number of messages right before a session is deleted."""

    turns: Turns
    left = 0

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        if self.left and getattr(work, "func", None) is session_deletion.delete:
            self.left -= 1
            await self.turns.accept(Inbound(owner="gateway", principal="local", content="b", channel="home"))
        return await super().run(work)


@pytest.mark.parametrize(("late", "states"), [(1, []), (3, []), (100, ["cancelled", "running"])])
async def test_messages_arriving_during_deletion_go_with_session_up_to_a_bound(
    path: Path, late: int, states: list[str]
):
    database = Talkative(path=path)
    turns = database.turns = turns_over(database, Silent())
    changes = SessionChanges(
        database=database, sessions=Sessions(database=database, history_messages=40), turns=turns
    )
    first = await turns.accept(Inbound(owner="gateway", principal="local", content="a", channel="home"))
    database.left = late

    if states:
        with pytest.raises(SessionBusy, match="Messages of the session keep arriving"):
            await changes.delete("gateway", first.session_id)
    else:
        assert len((await changes.delete("gateway", first.session_id)).turns) == 1 + late

    left = await database.run(lambda c: c.execute(sa.select(turn_rows.c.state)).scalars().all())
    assert sorted(set(left)) == states
    await turns.stop(grace=0)
    database.close()


class Doomed(SqliteDatabase):
    """Runs an event once, right before the turns to cancel are read."""

    before_cancel: Callable[[], Awaitable[object]] | None = None

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        if self.before_cancel is not None and getattr(work, "func", None) is outcomes.cancel:
            event, self.before_cancel = self.before_cancel, None
            await event()
        return await super().run(work)


async def test_stop_works_in_session_under_deletion(path: Path):
    database = Doomed(path=path)
    turns = turns_over(database, Silent())
    changes = SessionChanges(
        database=database, sessions=Sessions(database=database, history_messages=40), turns=turns
    )
    running, stop = (
        Inbound(owner="gateway", principal="local", content=c, channel="home") for c in ("a", "/stop")
    )
    turn = await turns.accept(running)
    database.before_cancel = partial(changes.delete, "gateway", turn.session_id)

    assert (await turns.accept(stop)).reply == "Stopped."

    await turns.stop(grace=0)
    database.close()


# --- in the assembled gateway


async def test_long_session_is_summarised_by_model(start: Start):
    model = ScriptedModel("one", "two", "notes of a", "three")
    app, client = await start(model, history_messages=2, compact_percent=100)
    for content in "ab":
        await say(client, content)
    assert app.core.compaction is not None
    await app.core.compaction.idle()
    await say(client, "c")
    assert "notes of a" in (model.requests[-1].info.instructions or "")


async def test_compaction_can_be_disabled_and_builtin_model_never_summarises(start: Start):
    off, _ = await start(ScriptedModel(), compact="false")
    assert off.core.compaction is None
    assert without_builtin(BuiltinModel(cards=list)) is None
    fallback = FallbackModel(ScriptedModel("a"), BuiltinModel(cards=list))
    left = without_builtin(fallback)
    assert isinstance(left, FallbackModel)
    assert [model.model_name for model in left.models] == ["scripted"]


async def test_idle_sessions_are_deleted_at_start(start: Start, tmp_path: Path):
    app, client = await start()
    await say(client, "a", channel="old")
    await say(client, "b", channel="new")
    await app.close()
    then = utc_now() - timedelta(days=2)
    engine = sqlite_engine(tmp_path / "data" / "torana.db")
    with engine.begin() as connection:
        connection.execute(sa.update(sessions).where(sessions.c.channel == "old").values(updated_at=then))
        connection.execute(sa.update(turn_rows).where(turn_rows.c.channel == "old").values(ended_at=then))
    engine.dispose()
    _, again = await start(session_days=1)
    while len((await again.get("/v1/sessions")).json()["items"]) > 1:
        pass  # it runs concurrently with everything else
    assert (await only_session(again))["channelId"] == "new"


# --- title and archive


async def test_title_and_archive_are_changed_and_filtered(client: httpx2.AsyncClient):
    for channel in ("a", "b"):
        await client.post("/message", json={"content": "hi", "channelId": channel})
    sessions = {item["channelId"]: item for item in (await client.get("/v1/sessions")).json()["items"]}
    path = f"/v1/sessions/{sessions['a']['id']}"
    changed = await client.patch(path, json={"title": " My\u202e plan\n2 ", "archived": True})
    assert (changed.json()["title"], changed.json()["archived"]) == ("My plan 2", True)
    assert (await client.get(path)).json() == changed.json()

    async def found(archived: str) -> set[str]:
        answer = await client.get("/v1/sessions", params={"archived": archived})
        return {item["channelId"] for item in answer.json()["items"]}

    assert [await found(archived) for archived in ("true", "false", "")] == [{"a"}, {"b"}, {"a", "b"}]
    only_title = (await client.patch(path, json={"title": None})).json()
    assert (only_title["title"], only_title["archived"]) == (None, True)


async def test_next_message_ends_archiving_and_keeps_title(client: httpx2.AsyncClient):
    sent = await client.post("/message", json={"content": "hi", "channelId": "a"})
    path = f"/v1/sessions/{sent.json()['sessionId']}"
    await client.patch(path, json={"title": "Mine", "archived": True})
    await client.post("/message", json={"content": "more", "channelId": "a"})
    session = (await client.get(path)).json()
    assert (session["title"], session["archived"]) == ("Mine", False)


@pytest.mark.parametrize(
    "change", [{}, {"title": " "}, {"title": "x" * 101}, {"archived": "yes"}, {"title": 1}]
)
async def test_invalid_change_is_400(client: httpx2.AsyncClient, change: dict[str, object]):
    sent = await client.post("/message", json={"content": "hi", "channelId": "a"})
    answer = await client.patch(f"/v1/sessions/{sent.json()['sessionId']}", json=change)
    assert answer.status_code == 400, answer.text


async def test_change_of_another_owners_session_is_404(start: Start):
    operator = {"Authorization": "Bearer a-token-of-more-than-sixteen-characters"}
    _, client = await start(gateway_token=operator["Authorization"].removeprefix("Bearer "))
    made = await client.post("/v1/tokens", json={"user": "ana"}, headers=operator)
    ana = {"Authorization": f"Bearer {made.json()['token']}"}
    sent = await client.post("/message", json={"content": "hi"}, headers=operator)
    path = f"/v1/sessions/{sent.json()['sessionId']}"
    assert (await client.patch(path, json={"archived": True}, headers=ana)).status_code == 404
    assert (await client.get(path, headers=operator)).json()["archived"] is False
    hers = await client.post("/message", json={"content": "hi"}, headers=ana)
    hers_path = f"/v1/sessions/{hers.json()['sessionId']}"
    assert (await client.patch(hers_path, json={"archived": True}, headers=operator)).status_code == 200
    audit = (await client.get("/v1/audit", headers=operator)).json()["items"][0]
    assert (audit["action"], audit["target"]) == ("session.change", hers.json()["sessionId"])
