"""Tokens over HTTP: creation, use, rotation, revocation, invalid input, and the audit record."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import sqlalchemy as sa

from torana.app import App
from torana.errors import ModelFailed
from torana.store.engine.tables import tokens
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

OPERATOR = "a-token-of-more-than-sixteen-characters"
INVALID = 'Bearer realm="torana", error="invalid_token"'


#: Ways in which a secret may be damaged in transit.
DAMAGED: list[Callable[[str], str]] = [
    lambda token: token[:-1],
    lambda token: token + "x",
    lambda token: token[len("torana_") :],
    lambda token: "ghp_" + token[len("torana_") :],
    lambda token: token.swapcase(),
    lambda token: "torana_",
    lambda token: "torana_" + "A" * 43,
    lambda token: "torana_" + "A" * 30_000,
    lambda token: token + ", " + token,
    lambda token: f'"{token}"',
    lambda token: "torana_' OR '1'='1",
]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def guarded(start: Start) -> Gateway:
    """A gateway with a token, and its operator's client."""
    app, client = await start(gateway_token=OPERATOR)
    client.headers.update(bearer(OPERATOR))
    return app, client


@pytest.fixture
def operator(guarded: Gateway) -> httpx2.AsyncClient:
    return guarded[1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_operator(start_shared: Start, tmp_path_factory: pytest.TempPathFactory) -> httpx2.AsyncClient:
    """The operator's client of a gateway with a token, for tests whose requests are refused."""
    _, client = await start_shared(gateway_token=OPERATOR, data_dir=tmp_path_factory.mktemp("guarded"))
    client.headers.update(bearer(OPERATOR))
    return client


async def make(operator: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await operator.post("/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def ask(client: httpx2.AsyncClient, token: str, path: str = "/skills") -> httpx2.Response:
    return await client.get(path, headers=bearer(token))


async def change(app: App, token_id: str, **values: Any) -> None:
    """Change the time of a token in the database."""
    statement = sa.update(tokens).where(tokens.c.id == token_id).values(values)
    await app.database.run(lambda connection: connection.execute(statement))


async def acts(operator: httpx2.AsyncClient) -> list[tuple[str, str, str, str]]:
    """Return principal, action, object and source of each action, the oldest first."""
    items = (await operator.get("/v1/audit")).json()["items"]
    return [(item["principal"], item["action"], item["target"], item["source"]) for item in reversed(items)]


async def test_token_secret_is_returned_only_at_creation(operator: httpx2.AsyncClient):
    answer = await operator.post("/v1/tokens", json={"user": "alice", "label": "phone", "expiresIn": 3600})
    body = answer.json()
    secret = body.pop("token")
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert re.fullmatch(r"torana_[A-Za-z0-9_-]{43}", secret)
    assert body["scopes"] == ["memory", "message", "read"]
    assert (body["user"], body["label"], body["status"]) == ("alice", "phone", "active")
    lifetime = datetime.fromisoformat(body["expiresAt"]) - datetime.fromisoformat(body["createdAt"])
    assert lifetime == timedelta(hours=1)
    listed = await operator.get("/v1/tokens")
    assert listed.json() == {"items": [body], "next": None}
    assert secret not in listed.text + (await operator.get("/v1/audit")).text


async def test_token_acts_as_its_bound_user(operator: httpx2.AsyncClient):
    made = await make(operator, user="alice")
    for body in ({"content": "hi"}, {"content": "hi", "userId": "alice"}):
        answer = await operator.post("/message", json=body, headers=bearer(made["token"]))
        assert (answer.status_code, answer.json()["userId"]) == (200, "alice")
    refused = await operator.post(
        "/message", json={"content": "hi", "userId": "bob"}, headers=bearer(made["token"])
    )
    assert (refused.status_code, refused.json()["code"]) == (403, "wrong_user")
    assert refused.json()["errors"][0]["pointer"] == "/userId"


async def test_integer_user_of_token_becomes_decimal_string(operator: httpx2.AsyncClient):
    made = await make(operator, user=12345)
    assert made["user"] == "12345"
    answer = await operator.post(
        "/message", json={"content": "hi", "userId": 12345}, headers=bearer(made["token"])
    )
    assert answer.json()["userId"] == "12345"


async def test_unbound_token_needs_impersonate_scope_to_name_user(operator: httpx2.AsyncClient):
    plain = await make(operator, scopes=["message"])
    named = {"content": "hi", "userId": "alice"}
    refused = await operator.post("/message", json=named, headers=bearer(plain["token"]))
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    nobody = await operator.post("/message", json={"content": "hi"}, headers=bearer(plain["token"]))
    assert nobody.json()["userId"] is None
    platform = await make(operator, scopes=["message", "impersonate"])
    answer = await operator.post("/message", json=named, headers=bearer(platform["token"]))
    assert answer.json()["userId"] == "alice"


async def test_revoked_token_is_refused_immediately(operator: httpx2.AsyncClient):
    made = await make(operator, user="alice")
    before = [(await ask(operator, made["token"])).status_code for _ in range(3)]
    revoked = await operator.delete(f"/v1/tokens/{made['id']}")
    after = [(await ask(operator, made["token"])).status_code for _ in range(3)]
    assert (before, after) == ([200] * 3, [401] * 3)
    assert (revoked.status_code, revoked.json()["status"]) == (200, "revoked")
    again = await operator.delete(f"/v1/tokens/{made['id']}")
    assert (again.status_code, again.json()) == (200, revoked.json())


async def test_accepted_turn_continues_after_token_is_revoked(start: Start):
    gate = asyncio.Event()
    app, operator = await start(ScriptedModel([gate, "done"]), gateway_token=OPERATOR)
    operator.headers.update(bearer(OPERATOR))
    made = await make(operator, user="alice")
    later = bearer(made["token"]) | {"Prefer": "respond-async"}
    turn = (await operator.post("/message", json={"content": "hi"}, headers=later)).json()
    await operator.delete(f"/v1/tokens/{made['id']}")
    gate.set()
    ended = await app.turns.reader.wait_for_end(await app.turns.reader.get("user:alice", turn["id"]))
    assert ended.state == "completed"
    assert (await ask(operator, made["token"], f"/v1/turns/{turn['id']}")).status_code == 401


async def test_expired_token_is_refused(guarded: Gateway):
    app, operator = guarded
    made = await make(operator, expiresIn=3600)
    assert (await ask(operator, made["token"])).status_code == 200
    await change(app, made["id"], expires_at=datetime.now(UTC))
    refused = await ask(operator, made["token"])
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, INVALID)
    assert (await operator.get("/v1/tokens")).json()["items"][0]["status"] == "expired"


@pytest.mark.parametrize("changed", DAMAGED)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "open"])
@pytest.mark.asyncio(loop_scope="module")
async def test_altered_token_is_refused(
    shared_operator: httpx2.AsyncClient,
    shared_client: httpx2.AsyncClient,
    changed: Callable[[str], str],
    guarded: bool,
):
    client = shared_operator if guarded else shared_client
    made = await make(client, user="alice")
    sent = changed(made["token"])
    answer = await ask(client, sent)
    if not guarded and not sent.startswith("torana_"):
        assert answer.status_code == 200  # an open gateway checks no other credentials
    else:
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, INVALID)
        assert made["token"] not in answer.text


async def test_token_is_refused_in_query_or_other_scheme(operator: httpx2.AsyncClient):
    made = await make(operator)
    del operator.headers["authorization"]
    answer = await operator.get("/skills", params={"token": made["token"], "access_token": made["token"]})
    assert answer.status_code == 401
    for value in (f"Basic {made['token']}", f"Token {made['token']}", made["token"]):
        assert (await operator.get("/skills", headers={"Authorization": value})).status_code == 401


async def test_open_gateway_accepts_token_of_user_and_local_callers(client: httpx2.AsyncClient):
    made = await make(client, user="alice")
    mine = await client.post("/message", json={"content": "hi"}, headers=bearer(made["token"]))
    assert mine.json()["userId"] == "alice"
    others = await client.post("/message", json={"content": "hi", "userId": "bob"})
    assert others.json()["userId"] == "bob"
    assert (await ask(client, made["token"], "/v1/tokens")).status_code == 403


async def test_rotated_token_works_until_overlap_ends(guarded: Gateway):
    app, operator = guarded
    old = await make(operator, user="alice", label="phone", scopes=["message"])
    answer = await operator.post(f"/v1/tokens/{old['id']}/rotate", json={"overlap": 600})
    new = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert (new["replaces"], new["user"], new["label"]) == (old["id"], "alice", "phone")
    assert (new["scopes"], new["expiresAt"]) == (["message"], None)
    assert [(await ask(operator, token["token"])).status_code for token in (old, new)] == [200, 200]
    listed = {item["id"]: item for item in (await operator.get("/v1/tokens")).json()["items"]}
    left = datetime.fromisoformat(listed[old["id"]]["expiresAt"]) - datetime.fromisoformat(new["createdAt"])
    assert left == timedelta(minutes=10)
    await change(app, old["id"], expires_at=datetime.now(UTC))
    assert [(await ask(operator, token["token"])).status_code for token in (old, new)] == [401, 200]


async def test_rotated_token_shares_limits_with_predecessor(start: Start):
    _, operator = await start(gateway_token=OPERATOR, limits_per_token="1 messages/day")
    operator.headers.update(bearer(OPERATOR))
    old = await make(operator)
    sent = [await operator.post("/message", json={"content": "hi"}, headers=bearer(old["token"]))]
    new = (await operator.post(f"/v1/tokens/{old['id']}/rotate")).json()
    sent += [await operator.post("/message", json={"content": "hi"}, headers=bearer(new["token"]))]
    assert [answer.status_code for answer in sent] == [200, 429]


@pytest.mark.parametrize("named", [0, 1, 2])
async def test_rule_for_token_applies_to_all_its_rotations(start: Start, named: int):
    app, operator = await start(gateway_token=OPERATOR)
    operator.headers.update(bearer(OPERATOR))
    chain = [await make(operator)]
    for _ in range(2):
        chain.append((await operator.post(f"/v1/tokens/{chain[-1]['id']}/rotate")).json())
    await app.close()
    rules = [{"tool": "*", "token": chain[named]["id"], "permission": "deny"}]
    model = ScriptedModel(*["Done."] * 3)
    _, client = await start(model, gateway_token=OPERATOR, permissions=json.dumps(rules))

    for token in chain:
        assert (
            await client.post("/message", json={"content": "hi"}, headers=bearer(token["token"]))
        ).is_success
        told = await client.get("/v1/tools", params={"token": token["id"]}, headers=bearer(OPERATOR))
        assert {item["permission"] for item in told.json()["items"]} == {"deny"}
    assert [request.info.function_tools for request in model.requests] == [[]] * 3


async def test_rotation_needs_no_body(operator: httpx2.AsyncClient):
    old = await make(operator)
    assert (await operator.post(f"/v1/tokens/{old['id']}/rotate")).status_code == 201
    assert (await ask(operator, old["token"])).status_code == 200  # for an hour


@pytest.mark.parametrize("end", ["revoked", "rotated"])
async def test_ended_token_cannot_be_rotated(operator: httpx2.AsyncClient, end: str):
    made = await make(operator)
    if end == "revoked":
        await operator.delete(f"/v1/tokens/{made['id']}")
    else:
        await operator.post(f"/v1/tokens/{made['id']}/rotate")
    answer = await operator.post(f"/v1/tokens/{made['id']}/rotate")
    assert (answer.status_code, answer.json()["code"]) == (409, "token_ended")
    assert end in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"user": ""}, "/user"),
        ({"user": True}, "/user"),
        ({"user": 1.5}, "/user"),
        ({"user": ["alice"]}, "/user"),
        ({"user": "x" * 257}, "/user"),
        ({"user": 10**300}, "/user"),
        ({"user": "alice", "scopes": ["admin"]}, "/scopes"),
        ({"user": "alice", "scopes": ["message", "impersonate"]}, "/scopes"),
        ({"scopes": []}, "/scopes"),
        ({"scopes": "message"}, "/scopes"),
        ({"scopes": ["message", "root"]}, "/scopes"),
        ({"scopes": ["Message"]}, "/scopes"),
        ({"scopes": [None]}, "/scopes"),
        ({"scopes": [{"message": 1}]}, "/scopes"),
        ({"scopes": {"message": True}}, "/scopes"),
        ({"label": 7}, "/label"),
        ({"label": "x" * 101}, "/label"),
        ({"expiresIn": 0}, "/expiresIn"),
        ({"expiresIn": -5}, "/expiresIn"),
        ({"expiresIn": "30d"}, "/expiresIn"),
        ({"expiresIn": 1.5}, "/expiresIn"),
        ({"expiresIn": True}, "/expiresIn"),
        ({"expiresIn": 315_360_001}, "/expiresIn"),
        ({"expiresIn": 10**18}, "/expiresIn"),
        ({"expiresIn": 1e300}, "/expiresIn"),
        ({"expiresIn": -(10**400)}, "/expiresIn"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_invalid_token_request_names_the_field(
    shared_operator: httpx2.AsyncClient, body: dict[str, Any], pointer: str
):
    before = (await shared_operator.get("/v1/tokens")).json()["items"]
    answer = await shared_operator.post("/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
    assert (await shared_operator.get("/v1/tokens")).json()["items"] == before


@pytest.mark.parametrize("seconds", [1, 3600, 3600.0, 315_360_000])
async def test_token_lifetime_is_whole_seconds(operator: httpx2.AsyncClient, seconds: float):
    made = await make(operator, expiresIn=seconds)
    lifetime = datetime.fromisoformat(made["expiresAt"]) - datetime.fromisoformat(made["createdAt"])
    assert lifetime == timedelta(seconds=seconds)


async def test_null_field_equals_absent_field(operator: httpx2.AsyncClient):
    made = await make(operator, user=None, scopes=None, label=None, expiresIn=None)
    assert (made["user"], made["label"], made["expiresAt"]) == (None, "", None)
    assert made["scopes"] == ["memory", "message", "read"]
    again = await operator.post(f"/v1/tokens/{made['id']}/rotate", json={"overlap": None})
    assert again.status_code == 201


async def test_number_of_10_000_digits_is_refused_as_too_large(operator: httpx2.AsyncClient):
    body = '{"expiresIn": ' + "9" * 10_000 + "}"
    answer = await operator.post("/v1/tokens", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")


@pytest.mark.parametrize("overlap", [-1, "1h", 1.5, True, 10**12, []])
async def test_invalid_overlap_is_refused_and_changes_nothing(operator: httpx2.AsyncClient, overlap: Any):
    made = await make(operator)
    answer = await operator.post(f"/v1/tokens/{made['id']}/rotate", json={"overlap": overlap})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/overlap")
    assert (await operator.get("/v1/tokens")).json()["items"][0]["expiresAt"] is None


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"label": "\\ud800"}', "application/json", 400),
        (b'{"user": "a\\u0000"}', "application/json", 400),
        (b"{}", "text/plain", 415),
        (b'{"label": "' + b"x" * 300_000 + b'"}', "application/json", 413),
    ],
)
async def test_body_that_is_no_token_request_is_refused(
    operator: httpx2.AsyncClient, content: bytes, kind: str, status: int
):
    answer = await operator.post("/v1/tokens", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status


@pytest.mark.parametrize("token_id", ["tok_0", "..%2f..", "%27%20OR%201%3D1", "%00", "é"])
async def test_unknown_token_is_404(operator: httpx2.AsyncClient, token_id: str):
    assert (await operator.delete(f"/v1/tokens/{token_id}")).status_code == 404
    assert (await operator.post(f"/v1/tokens/{token_id}/rotate")).status_code == 404


async def test_tokens_are_listed_in_pages_newest_first(operator: httpx2.AsyncClient):
    made = [(await make(operator))["id"] for _ in range(5)]
    listed: list[str] = []
    after = ""
    while after is not None:
        page = (await operator.get("/v1/tokens", params={"limit": 2, "after": after})).json()
        listed += [item["id"] for item in page["items"]]
        after = page["next"]
    assert listed == made[::-1]


@pytest.mark.parametrize("path", ["/v1/tokens", "/v1/audit"])
async def test_unknown_cursor_is_refused(operator: httpx2.AsyncClient, path: str):
    assert (await operator.get(path, params={"after": "!!"})).status_code == 400
    assert (await operator.get(path, params={"limit": "many"})).status_code == 400


async def test_last_use_of_token_is_reported(operator: httpx2.AsyncClient):
    made = await make(operator)
    assert made["usedAt"] is None
    await ask(operator, made["token"])
    used = (await operator.get("/v1/tokens")).json()["items"][0]["usedAt"]
    assert datetime.fromisoformat(used) >= datetime.fromisoformat(made["createdAt"])


async def test_administrative_actions_are_audited_with_principal_and_address(
    operator: httpx2.AsyncClient,
):
    admin = await make(operator, scopes=["admin"])
    made = (
        await operator.post("/v1/tokens", json={"user": "bob", "label": "x"}, headers=bearer(admin["token"]))
    ).json()
    new = (await operator.post(f"/v1/tokens/{made['id']}/rotate", json={"overlap": 60})).json()
    await operator.delete(f"/v1/tokens/{new['id']}")
    await operator.delete(f"/v1/tokens/{new['id']}")  # changes nothing
    await operator.post("/v1/tokens", json={"scopes": []})  # is refused
    assert await acts(operator) == [
        ("operator", "token.create", admin["id"], "127.0.0.1"),
        (f"token:{admin['id']}", "token.create", made["id"], "127.0.0.1"),
        ("operator", "token.rotate", made["id"], "127.0.0.1"),
        ("operator", "token.revoke", new["id"], "127.0.0.1"),
    ]
    detail = (await operator.get("/v1/audit", params={"limit": 2})).json()["items"][1]["detail"]
    assert detail == {"user": "bob", "replacedBy": new["id"], "overlapSeconds": 60}


async def test_operator_changes_to_turns_of_users_are_audited(start: Start):
    failing, hanging = [ModelFailed("no")], [asyncio.Event(), "never"]
    model = ScriptedModel(failing, failing, hanging, hanging, hanging)
    _, operator = await start(model, gateway_token=OPERATOR)
    operator.headers.update(bearer(OPERATOR))
    alice = bearer((await make(operator, user="alice"))["token"])
    hers = await failed_turn(operator, alice)
    ours = await failed_turn(operator, {})
    await operator.post(f"/v1/turns/{hers}/retry")
    await operator.post(f"/v1/turns/{hers}/cancel")
    await operator.post(f"/v1/turns/{hers}/cancel")  # it has ended
    await operator.post(f"/v1/turns/{hers}/retry")  # and is not to be run again
    await operator.post(f"/v1/turns/{ours}/retry")
    later = alice | {"Prefer": "respond-async"}
    mine = (await operator.post("/message", json={"content": "hi"}, headers=later)).json()
    await operator.post(f"/v1/turns/{mine['id']}/cancel", headers=alice)
    assert [(action, target) for _, action, target, _ in await acts(operator)][1:] == [
        ("turn.retry", hers),
        ("turn.cancel", hers),
    ]


async def test_operator_changes_to_sessions_and_memories_are_audited(guarded: Gateway):
    _, operator = guarded
    alice = await make(operator, user="alice")
    headers = {"Authorization": f"Bearer {alice['token']}"}
    session = (await operator.post("/message", json={"content": "hi"}, headers=headers)).json()["sessionId"]
    place = "/v1/users/alice/memories"
    own = (await operator.post(place, json={"text": "my cat is grey"}, headers=headers)).json()["id"]

    memory = (await operator.post(place, json={"text": "her dog is black"})).json()["id"]
    await operator.patch(f"{place}/{own}", json={"text": "her cat is grey"})
    await operator.patch(f"{place}/mem_0", json={"text": "not there"})
    await operator.delete(f"{place}/{memory}")
    await operator.post(f"/v1/sessions/{session}/fork")
    await operator.post(f"/v1/sessions/{session}/reset")
    await operator.delete(f"/v1/sessions/{session}")

    items = (await operator.get("/v1/audit")).json()["items"]
    assert [(item["action"], item["target"]) for item in items[:-1]] == [
        ("session.delete", session),
        ("session.reset", session),
        ("session.fork", session),
        ("memory.forget", "alice"),
        ("memory.change", "alice"),
        ("memory.remember", "alice"),
    ]
    assert "grey" not in json.dumps(items)
    assert "black" not in json.dumps(items)


async def failed_turn(client: httpx2.AsyncClient, headers: dict[str, str]) -> str:
    """Return the id of a turn whose model failed."""
    answer = await client.post(
        "/message", json={"content": "hi"}, headers=headers | {"Accept": "text/event-stream"}
    )
    frames = [frame.split("\n") for frame in answer.text.split("\n\n")[:-1]]
    accepted = json.loads(frames[0][-1].removeprefix("data: "))
    assert frames[-1][0] == "event: turn.failed", answer.text
    return accepted["id"]


async def test_broken_database_leaves_only_operator_token_working(guarded: Gateway):
    app, operator = guarded
    made = await make(operator)
    app.database.close()
    refused = await ask(operator, made["token"])
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    assert (await operator.get("/skills")).status_code == 200
