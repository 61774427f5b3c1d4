"""Messages that cannot be accepted are refused at once, leave no data, and are accepted later."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
import sqlalchemy as sa

from torana.app import App
from torana.errors import ModelFailed
from torana.store.engine import database
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]
Stored = Callable[[App], Awaitable[int]]


async def send(
    client: httpx2.AsyncClient, channel: str | None = "c", user: str | None = None
) -> httpx2.Response:
    body = {"content": "hi", "channelId": channel, "userId": user}
    return await client.post("/message", json=body, headers={"Prefer": "respond-async"})


# --- shedding


@pytest.mark.parametrize(
    ("settings", "full", "other", "refusal"),
    [
        ({"queue_per_session": 3}, ("c", None), ("d", None), (429, "queue_full")),
        ({"queue_per_user": 3}, (None, "ana"), (None, "ben"), (429, "queue_full")),
        ({"queue": 3}, (None, None), None, (503, "overloaded")),
    ],
    ids=lambda value: str(value),
)
async def test_messages_over_queue_limit_are_refused_until_there_is_room(
    start: Start,
    stored: Stored,
    settings: dict[str, int],
    full: tuple[str | None, str | None],
    other: tuple[str | None, str | None] | None,
    refusal: tuple[int, str],
):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel(*[[gate, "yes"]] * 20), **settings)
    taken = [await send(client, *full) for _ in range(3)]
    assert [answer.status_code for answer in taken] == [202] * 3
    kept = await stored(app)
    refused = await send(client, *full)
    assert (refused.status_code, refused.json()["code"]) == refusal
    assert int(refused.headers["retry-after"]) > 0
    assert "TORANA_QUEUE" in refused.json()["detail"]
    assert await stored(app) == kept
    if other is not None:
        assert (await send(client, *other)).status_code == 202
    gate.set()
    for answer in taken:
        await app.turns.reader.wait_for_end(await app.turns.reader.get("gateway", answer.json()["id"]))
    assert (await send(client, *full)).status_code == 202


async def test_queue_limit_holds_for_concurrent_messages(start: Start):
    gate = asyncio.Event()
    _, client = await start(ScriptedModel(*[[gate, "yes"]] * 20), queue_per_session=3)
    answers = await asyncio.gather(*(send(client) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] * 3 + [429] * 17
    gate.set()


async def test_message_refused_by_full_queue_uses_no_rate_limit(start: Start):
    gate = asyncio.Event()
    _, client = await start(ScriptedModel([gate, "yes"]), queue=1, rate_global=2)
    assert (await send(client)).headers["ratelimit"].startswith('"global";r=1')
    assert [(await send(client)).status_code for _ in range(3)] == [503] * 3
    gate.set()


async def test_control_words_bypass_full_queue(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"])
    _, client = await start(model, queue=1, queue_per_session=1)
    await send(client)
    answer = await client.post("/message", json={"content": "/stop", "channelId": "c"})
    assert (answer.status_code, answer.json()["reply"]) == (200, "Stopped.")


async def test_replay_bypasses_full_queue(start: Start):
    _, client = await start(ScriptedModel([asyncio.Event(), "never"]), queue=1)
    known = {"json": {"content": "hi"}, "headers": {"Idempotency-Key": "k", "Prefer": "respond-async"}}
    first = await client.post("/message", json=known["json"], headers=known["headers"])
    again = await client.post("/message", json=known["json"], headers=known["headers"])
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])


async def test_draining_gateway_refuses_messages_and_replays_keys(start: Start):
    app, client = await start()
    body = {"content": "hi", "channelId": "c"}
    first = await client.post("/message", json=body, headers={"Idempotency-Key": "k"})
    await app.turns.stop(grace=0)
    refused = await client.post("/message", json=body)
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) > 0
    again = await client.post("/message", json=body, headers={"Idempotency-Key": "k"})
    assert again.json() == first.json()


# --- the database


async def test_locked_database_is_503_and_recovers(start: Start, stored: Stored, tmp_path: Path):
    app, client = await start()
    await app.database.run(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 1"))
    before = await stored(app)
    with closing(sqlite3.connect(tmp_path / "data" / "torana.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = await send(client)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert int(refused.headers["retry-after"]) > 0
        other.execute("ROLLBACK")
    assert await stored(app) == before
    assert (await client.post("/message", json={"content": "hi"})).json()["reply"] == "yes"
    assert (await client.get("/health")).json()["status"] == "ok"


async def pages(app: App, room: int | None) -> None:
    """Let the database grow by this number of pages, as on a disk that is nearly full; None frees the disk."""

    def limit(connection: sa.Connection) -> None:
        used = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
        most = 1_000_000 if room is None else used + room
        connection.exec_driver_sql(f"PRAGMA max_page_count = {most}")

    await app.database.run(limit)


async def test_full_disk_is_503_without_partial_write_and_recovers(start: Start, stored: Stored):
    app, client = await start()
    await pages(app, 0)
    taken = 0
    long = {"content": "x" * 10_000}
    while (answer := await client.post("/message", json=long, headers={"Prefer": "respond-async"})).is_success:
        taken += 1
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert await stored(app) == 2 * taken
    assert (await client.get("/health")).json()["status"] == "degraded"
    await pages(app, None)
    assert (await client.post("/message", json=long)).json()["reply"] == "yes"
    assert (await client.get("/health")).json()["status"] == "ok"


async def test_reply_is_stored_when_full_disk_has_room_again(start: Start):
    gate = asyncio.Event()
    reply = "x" * 500_000
    app, client = await start(ScriptedModel([gate, reply]))
    waiting = asyncio.create_task(client.post("/message", json={"content": "hi", "channelId": "c"}))
    while not (await client.get("/v1/sessions")).json()["items"]:
        pass
    await pages(app, 0)
    gate.set()
    while await app.database.writable():  # noqa: ASYNC110 - nothing tells of it but asking again
        await asyncio.sleep(0)
    assert (await client.get("/health")).json()["status"] == "degraded"
    assert not waiting.done()
    await pages(app, None)
    answer = await waiting
    assert (answer.status_code, answer.json()["reply"]) == (200, reply)


async def test_retries_count_as_messages(start: Start):
    model = ScriptedModel(*[[ModelFailed("not now")]] * 5)
    _, client = await start(model, rate_per_user=2)
    body = {"content": "hi", "channelId": "c", "userId": "ana"}
    key = {"Idempotency-Key": "k"}
    assert (await client.post("/message", json=body, headers=key)).status_code == 502
    assert (await client.post("/message", json=body, headers=key)).status_code == 502
    [session] = (await client.get("/v1/sessions")).json()["items"]
    [asked] = (await client.get(f"/v1/sessions/{session['id']}/messages")).json()["items"]

    for refused in (
        await client.post("/message", json=body, headers=key),
        await client.post(f"/v1/turns/{asked['turnId']}/retry"),
    ):
        assert (refused.status_code, refused.json()["violatedPolicies"]) == (429, ["user"])
    assert len(model.requests) == 2


async def test_forks_count_as_messages(start: Start):
    _, client = await start(rate_global=2)
    session = (await client.post("/message", json={"content": "hi"})).json()["sessionId"]
    made = [(await client.post(f"/v1/sessions/{session}/fork")).status_code for _ in range(2)]
    assert made == [201, 429]


async def test_accepted_message_with_unstored_reply_is_503_and_replied_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(database, "DELAY", 0)
    app, client = await start(ScriptedModel("long " * 40_000, "short"))
    await pages(app, 20)

    told = await client.post("/message", json={"content": "hi", "channelId": "c"})

    assert (told.status_code, told.json()["code"]) == (503, "store_unavailable")
    assert "its answer is stored as soon as possible" in told.json()["detail"]
    assert int(told.headers["retry-after"]) > 0
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "degraded")
    for _ in range(3):  # the messages are small, but their answers would wait too
        refused = await send(client, channel=None)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    await pages(app, None)
    assert (await client.post("/message", json={"content": "hi"})).json()["reply"] == "short"
    turn = (await client.get(f"/{told.json()['instance']}")).json()
    assert (turn["status"], turn["reply"]) == ("completed", "long " * 40_000)
    assert (await client.get("/health")).json()["status"] == "ok"
