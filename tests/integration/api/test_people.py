"""The export and the erasure of a user's data."""

import asyncio
import csv
import errno
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx2
import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ToolCallPart

from torana.api import dependencies
from torana.app import App
from torana.errors import ModelFailed
from torana.messages import File, Inbound, Turn
from torana.store.engine.tables import (
    audit,
    history,
    keys,
    memories,
    sessions,
    tokens,
    tombstones,
    turns,
    usage,
)
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

AT = datetime(2026, 3, 2, tzinfo=UTC)
TOKEN = {
    "id": "tok_1",
    "owner": "user:ana",
    "user": "ana",
    "label": "ana's phone",
    "digest": b"d",
    "scopes": "message",
    "created_at": AT,
}


async def say(client: httpx2.AsyncClient, content: str, channel: str, user: str | None, **headers: str) -> str:
    """Send a message; return the id of its turn, or None if the request failed."""
    body = {"content": content, "channelId": channel, "userId": user}
    return (await client.post("/message", json=body, headers=headers)).json().get("id", "")


async def rows(app: App, table: sa.Table) -> list[dict[str, Any]]:
    return await app.database.run(lambda c: [dict(row) for row in c.execute(sa.select(table)).mappings()])


async def insert(app: App, table: sa.Table, **values: Any) -> None:
    await app.database.run(lambda connection: connection.execute(sa.insert(table), values))


async def erase(client: httpx2.AsyncClient, user: str) -> dict[str, Any]:
    answer = await client.delete(f"/v1/users/{user}")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    return answer.json()


async def export(client: httpx2.AsyncClient, user: str) -> dict[str, str]:
    """Return the files of a user's export, by name."""
    answer = await client.get(f"/v1/users/{user}/export")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    with ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- erasure


async def test_erasure_receipt_counts_erased_and_names_kept_data(start: Start):
    remembering = ToolCallPart("remember", {"text": "Ana likes figs", "subject": "fruit"})
    app, client = await start(ScriptedModel([remembering], "kept", "yes", [ModelFailed("no")]))
    await say(client, "I like figs", "a", "ana")
    await say(client, "and again", "a", "ana", **{"Idempotency-Key": "figs"})
    await say(client, "once more", "b", "ana")
    for user in ("ana", "ben"):
        reminder = {"text": "eat figs", "at": "tomorrow at 9", "userId": user}
        (await client.post("/v1/schedules", json=reminder)).raise_for_status()
    await insert(app, tokens, **TOKEN)

    receipt = await erase(client, "ana")

    assert receipt["counts"] == {
        "sessions": 2,
        "turns": 3,
        "memories": 1,
        "schedules": 1,
        "files": 0,
        "keys": 1,
        "tokensRevoked": 1,
        "copies": 0,
    }
    assert receipt["user"] == "ana"
    assert any("audit" in kept for kept in receipt["kept"])
    assert all(any(word in place for place in receipt["outOfReach"]) for word in ("backups", "MCP"))
    assert [await rows(app, table) for table in (sessions, turns, history, memories)] == [[], [], [], []]


async def test_second_erasure_and_unknown_user_count_zero(client: httpx2.AsyncClient):
    await say(client, "hi", "a", "ana")
    await erase(client, "ana")
    for user in ("ana", "nobody", "~Li4"):
        assert set((await erase(client, user))["counts"].values()) == {0}


async def test_erasure_in_shared_session_keeps_turns_of_other_users(start: Start):
    model = ScriptedModel("to ana", "to ben", "to nobody", "to ana too", "to ben too")
    app, client = await start(model)
    room = {"ana": "mine", "ben": "ben's", None: "whose?"}
    for user, content in room.items():
        await say(client, content, "room", user)
    await say(client, "mine again", "room", "ana")
    await app.database.run(
        lambda c: c.execute(sa.update(sessions).values(title="mine", summary="ana said", summary_to=1))
    )

    counts = (await erase(client, "ana"))["counts"]

    assert (counts["sessions"], counts["turns"]) == (0, 2)

    assert [(turn["user"], turn["reply"]) for turn in await rows(app, turns)] == [
        ("ben", "to ben"),
        (None, "to nobody"),
    ]
    [session] = await rows(app, sessions)
    assert (session["speaker"], session["title"], session["summary"]) == ("ben", None, None)
    assert session["shared"]  # users who were in the session may still read it
    assert session["summary_to"] < 0  # a summary in progress finds a changed mark, and is not stored
    await say(client, "and now?", "room", "ben")
    shown = str(model.requests[-1].messages)
    assert "ben's" in shown
    assert "to nobody" in shown
    assert "mine" not in shown


async def test_reset_before_erasure_hides_no_later_message(start: Start):
    model = ScriptedModel("1", "2", "3", "4", "5")
    _, client = await start(model)
    await say(client, "ancient", "room", "ben")
    for content in ("a", "b"):
        await say(client, content, "room", "ana")
    await say(client, "/new", "room", "ben")
    await erase(client, "ana")
    await say(client, "after it", "room", "ben")
    await say(client, "what did I say?", "room", "ben")
    shown = str(model.requests[-1].messages)
    assert "after it" in shown
    assert "ancient" not in shown


async def test_running_and_queued_turns_are_cancelled_before_erasure(start: Start):
    gate = asyncio.Event()
    model = ScriptedModel([gate, "never"], "to ben")
    app, client = await start(model)
    later = {"Prefer": "respond-async"}
    ids = [await say(client, content, "room", "ana", **later) for content in ("one", "two")]
    waiting = await say(client, "ben's", "room", "ben", **later)
    await model.asked()

    assert (await erase(client, "ana"))["counts"]["turns"] == 2

    gate.set()
    ended = await app.turns.reader.wait_for_end(await app.turns.reader.get("gateway", waiting))
    assert ended.reply == "to ben"
    assert {grave["turn_id"] for grave in await rows(app, tombstones)} == set(ids)


@pytest.mark.parametrize("path", ["/v1/users/ana/memories", "/message"])
async def test_request_whose_body_arrives_after_the_erasure_is_refused(
    start: Start, path: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dependencies, "_SLOW", 0)
    app, client = await start(gateway_token="a-token-of-more-than-sixteen-characters")
    operator = {"Authorization": "Bearer a-token-of-more-than-sixteen-characters"}
    made = await client.post("/v1/tokens", json={"user": "ana"}, headers=operator)
    hers = {"Authorization": f"Bearer {made.json()['token']}", "Content-Type": "application/json"}

    async def body() -> AsyncIterator[bytes]:
        yield b'{"text": "I like tea", "content": "I like '
        assert (await client.delete("/v1/users/ana", headers=operator)).status_code == 200
        yield b'tea"}'

    answer = await client.post(path, content=body(), headers=hers)

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert await rows(app, memories) == await rows(app, turns) == []


async def test_events_of_erased_turns_leave_memory(start: Start):
    app, client = await start(ScriptedModel("secret words"))
    turn = await app.turns.reader.get("gateway", await say(client, "hi", "a", "ana"))
    assert "secret words" in str([event async for event in app.turns.reader.events(turn)])
    await erase(client, "ana")
    assert not app.turns.live.log.has_events(turn.id)


async def test_erasure_removes_sessions_of_token_and_revokes_it_without_label(gateway: Gateway):
    app, client = gateway
    first = await say(client, "hi", "a", "ana")
    await app.database.run(lambda c: c.execute(sa.update(sessions).values(owner="user:ana")))
    await app.database.run(lambda c: c.execute(sa.update(turns).values(owner="user:ana")))
    await insert(app, tokens, **TOKEN)
    await insert(app, tokens, **TOKEN | {"id": "tok_2", "digest": b"e", "revoked_at": AT})
    await insert(app, tokens, **TOKEN | {"id": "tok_3", "digest": b"f", "user": "ben", "owner": "user:ben"})

    counts = (await erase(client, "ana"))["counts"]

    assert (counts["sessions"], counts["turns"], counts["tokensRevoked"]) == (1, 1, 1)
    [grave] = await rows(app, tombstones)
    assert (grave["turn_id"], grave["owner"]) == (first, "user:ana")
    kept = {token["id"]: (token["label"], token["revoked_at"]) for token in await rows(app, tokens)}
    assert kept["tok_1"][0] == kept["tok_2"][0] == ""
    assert kept["tok_1"][1] is not None
    assert kept["tok_2"][1] == AT
    assert kept["tok_3"] == ("ana's phone", None)


async def test_erasure_keeps_usage_amounts_and_audit_record_without_text(gateway: Gateway):
    app, client = gateway
    await say(client, "a secret", "a", "ana")
    await insert(app, usage, **USAGE)
    await erase(client, "ana")
    kept = {
        (row["account"], row["period"] == USAGE["period"]): row["messages"] for row in await rows(app, usage)
    }
    assert kept == {("gateway", False): 1, ("user:ana", False): 1, ("user:ana", True): 3}
    [entry] = await rows(app, audit)
    assert (entry["action"], entry["target"], entry["principal"]) == ("user.erase", "ana", "local")
    counts = {"sessions": 1, "turns": 1, "memories": 0, "schedules": 0, "keys": 0, "tokensRevoked": 0}
    assert json.loads(entry["detail"]) == counts


USAGE = {
    "account": "user:ana",
    "period": "2026-01-02",
    "messages": 3,
    "input_tokens": 100,
    "output_tokens": 20,
    "microusd": 1_500_000,
    "reserved_tokens": 0,
    "reserved_microusd": 0,
}


async def test_erasure_keeps_data_of_other_users(gateway: Gateway):
    app, client = gateway
    remembered = {"id": "mem_1", "owner": "user:ben", "subject": "", "text": "figs", "created_at": AT}
    mine = await say(client, "hi", "a", "ana")
    await insert(app, memories, **remembered, turn_id=mine)
    await say(client, "hi", "b", "ben", **{"Idempotency-Key": "b"})
    before = [await rows(app, table) for table in (memories, keys)]
    await erase(client, "ana")
    assert [await rows(app, table) for table in (memories, keys)] == before
    assert [turn["user"] for turn in await rows(app, turns)] == ["ben"]


async def test_user_ids_differing_in_case_or_form_are_erased_separately(gateway: Gateway):
    app, client = gateway
    for user in ("Ana", "ana", "a%"):
        await say(client, "hi", f"of {user}", user)
    await erase(client, "ana")
    assert [turn["user"] for turn in await rows(app, turns)] == ["Ana", "a%"]


async def test_erasure_deletes_only_copies_of_upgrades_and_restores(start: Start, tmp_path: Path):
    _, client = await start()
    data = tmp_path / "data"
    for name in ("torana.db.before-0003", "torana.db.before-0003.part", "torana.db.replaced-2026", "notes.txt"):
        (data / name).write_text("text")
    (data / ".torana-restore-x").mkdir()
    (data / ".torana-restore-x" / "torana.db").write_text("text")
    (data / "skills.replaced-2026").mkdir()

    assert (await erase(client, "ana"))["counts"]["copies"] == 4

    left = {file.name for file in data.iterdir() if not file.name.startswith("torana.")}
    assert left == {"notes.txt", "skills.replaced-2026"}


async def test_copy_that_cannot_be_deleted_fails_erasure(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, client = await start()
    copy = tmp_path / "data" / "torana.db.before-0003"
    copy.touch()

    def refused(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        answer = await client.delete("/v1/users/ana")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert str(copy) in answer.json()["detail"]
    assert (await erase(client, "ana"))["counts"]["copies"] == 1


@pytest.mark.parametrize("path", ["/v1/users/..", "/v1/users/~", "/v1/users/~YQ", "/v1/users/a%20b"])
async def test_invalid_user_id_is_404(client: httpx2.AsyncClient, path: str):
    for answer in (await client.delete(path), await client.get(f"{path}/export")):
        assert answer.status_code == 404


async def test_erased_turn_and_its_key_are_410(client: httpx2.AsyncClient):
    turn = await say(client, "hi", "a", "ana", **{"Idempotency-Key": "k"})
    await erase(client, "ana")
    body = {"content": "hi", "channelId": "a", "userId": "ana"}
    answers = [
        await client.get(f"/v1/turns/{turn}"),
        await client.post("/message", json=body, headers={"Idempotency-Key": "k"}),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(410, "erased")] * 2


async def test_export_and_erasure_require_token(start: Start):
    _, client = await start(gateway_token="a-token-of-more-than-sixteen-characters")
    for answer in (await client.delete("/v1/users/ana"), await client.get("/v1/users/ana/export")):
        assert answer.status_code == 401


# --- export


async def test_export_contains_all_data_of_user(start: Start):
    calls = [
        ToolCallPart("remember", {"text": f"Ana likes {x}", "subject": "fruit"}) for x in ("figs", "kiwis")
    ]
    model = ScriptedModel([calls[0]], "kept", [calls[1]], "kept 2", [ModelFailed("no")])
    app, client = await start(model, connectors='{"telegram": {"enabled": false}}')
    for content in ("figs 🍈", "kiwis", "fail"):
        await say(client, content, "a", "ana")
    await insert(app, usage, **USAGE)
    await insert(app, tokens, **TOKEN)
    paired = {"who": "telegram:12345", "user": "ana"}
    (await client.post("/v1/pairing/approve", json=paired)).raise_for_status()
    for user in ("ana", "ben"):
        reminder = {"text": "eat figs", "rule": "every day at 9", "userId": user}
        (await client.post("/v1/schedules", json=reminder)).raise_for_status()

    files = await export(client, "ana")

    [name] = [name for name in files if name.startswith("sessions/")]
    assert re.fullmatch(r"sessions/ses_\w+\.jsonl", name)
    said = lines(files[name])
    assert [(turn["content"], turn["reply"], turn["status"]) for turn in said] == [
        ("figs 🍈", "kept", "completed"),
        ("kiwis", "kept 2", "completed"),
        ("fail", None, "failed"),
    ]
    assert (said[0]["channelId"], said[2]["error"]["code"]) == ("a", "model_failed")
    old, new = lines(files["memories.jsonl"])
    assert (old["text"], old["supersededBy"], new["supersededAt"]) == ("Ana likes figs", new["id"], None)
    [schedule] = lines(files["schedules.jsonl"])
    assert (schedule["text"], schedule["rule"], "made_by" in schedule) == ("eat figs", "0 9 * * *", False)
    [token] = lines(files["tokens.jsonl"])
    assert (token["label"], "digest" in token) == ("ana's phone", False)
    [account] = lines(files["accounts.jsonl"])
    assert (account["sender"], account["state"], "code" in account) == ("telegram:12345", "approved", False)
    spent, today = csv.DictReader(io.StringIO(files["usage.csv"]))
    assert (spent["period"], spent["messages"], spent["costUsd"]) == ("2026-01-02", "3", "1.5")
    assert (today["messages"], today["costUsd"]) == ("3", "0.0")
    manifest = json.loads(files["manifest.json"])
    assert manifest["user"] == "ana"
    assert manifest["counts"] == {
        "sessions": 1,
        "turns": 3,
        "files": 0,
        "workspace": 0,
        "memories": 2,
        "schedules": 1,
        "tokens": 1,
        "approvals": 0,
        "accounts": 1,
    }
    _, entry = await rows(app, audit)
    assert (entry["action"], entry["target"], json.loads(entry["detail"])) == (
        "user.export",
        "ana",
        manifest["counts"],
    )


async def test_export_contains_stored_files(start: Start):
    app, client = await start(ScriptedModel([ModelFailed("no")], "seen", [ModelFailed("no")]))
    files = (
        File(name='../../evil"é.txt', media_type="text/plain", body="hé".encode()),
        File(name="cat.txt", media_type="text/plain", body=b"meow"),
    )
    ended: list[Turn] = []
    for content, user in (("fail", "ana"), ("answered", "ana"), ("fail", "ben")):
        said = Inbound(owner="gateway", principal="local", content=content, user=user, files=files)
        ended.append(await app.turns.reader.wait_for_end(await app.turns.accept(said)))

    exported = await export(client, "ana")

    failed = ended[0].id
    assert lines(exported["files.jsonl"]) == [
        {"file": f"files/{failed}/{n}", "turnId": failed, "name": file.name, "mediaType": "text/plain"}
        for n, file in enumerate(files, start=1)
    ]
    assert [name for name in exported if name.startswith("files/")] == [
        f"files/{failed}/1",
        f"files/{failed}/2",
    ]
    assert (exported[f"files/{failed}/1"], exported[f"files/{failed}/2"]) == ("hé", "meow")
    assert json.loads(exported["manifest.json"])["counts"]["files"] == 2


async def test_export_of_shared_session_contains_only_own_turns(start: Start):
    _, client = await start(ScriptedModel("to ana", "to ben", "to nobody"))
    for user, content in (("ana", "mine"), ("ben", "ben's"), (None, "whose?")):
        await say(client, content, "room", user)
    text = str(await export(client, "ana"))
    assert "mine" in text
    assert "to ana" in text
    for foreign in ("ben", "whose?", "to nobody"):
        assert foreign not in text


async def test_export_of_unknown_user_is_empty(client: httpx2.AsyncClient):
    await say(client, "hi", "a", "ana")
    files = await export(client, "~" + "8J-NiA")
    assert {name: len(text.splitlines()) for name, text in files.items() if name != "manifest.json"} == {
        "files.jsonl": 0,
        "memories.jsonl": 0,
        "schedules.jsonl": 0,
        "tokens.jsonl": 0,
        "approvals.jsonl": 0,
        "accounts.jsonl": 0,
        "usage.csv": 1,
    }
    assert json.loads(files["manifest.json"])["user"] == "🍈"


async def test_head_of_export_is_405_and_not_audited(start: Start):
    app, client = await start()
    assert (await client.head("/v1/users/ana/export")).status_code == 405
    assert await rows(app, audit) == []


async def test_export_is_download_and_leaves_no_file(start: Start, tmp_path: Path):
    _, client = await start()
    before = {file.name for file in (tmp_path / "data").iterdir()}
    answer = await client.get("/v1/users/~Li4vLi4/export")  # ../..
    disposition = answer.headers["content-disposition"]
    assert re.fullmatch(r'attachment; filename="torana-user-\d{8}T\d{6}Z\.zip"', disposition)
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert {file.name for file in (tmp_path / "data").iterdir()} == before


async def test_erasure_clears_title_in_fork_of_session(start: Start) -> None:
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "yes"]))
    body = {"content": "Plums and pears", "channelId": "room", "userId": "ana"}
    waiting = await client.post("/message", json=body, headers={"Prefer": "respond-async"})
    await client.post(f"/v1/sessions/{waiting.json()['sessionId']}/fork", json={})
    gate.set()

    await erase(client, "ana")

    assert [row["title"] for row in await rows(app, sessions)] == [None]
