"""The data that each token reaches: the scopes of every path, and no data of another owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any, get_args

import httpx2
import pytest

from torana.api.serving.framework import openapi
from torana.app import App
from torana.messages import Scope
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

OPERATOR = "a-token-of-more-than-sixteen-characters"

#: The scopes, each of which permits a path to an unbound token; `admin` includes every scope. None means every
#: scope.
OPENED_BY: dict[tuple[str, str], set[Scope] | None] = {
    ("GET", "/health"): None,
    ("GET", "/"): None,
    ("GET", "/docs"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/skills"): {"message", "read", "skills"},
    ("POST", "/message"): {"message"},
    ("GET", "/v1/turns"): {"read"},
    ("POST", "/v1/messages"): {"message"},
    ("GET", "/v1/turns/{turn_id}"): {"message", "read"},
    ("GET", "/v1/turns/{turn_id}/steps"): {"message", "read"},
    ("GET", "/v1/turns/{turn_id}/calls"): {"read"},
    ("GET", "/v1/turns/{turn_id}/events"): {"message", "read"},
    ("POST", "/v1/turns/{turn_id}/cancel"): {"message"},
    ("POST", "/v1/turns/{turn_id}/retry"): {"message"},
    ("POST", "/v1/turns/{turn_id}/approvals/{call_id}"): {"message"},
    ("GET", "/v1/approvals"): {"read"},
    ("GET", "/v1/approvals/{approval_id}"): {"message", "read"},
    ("POST", "/v1/approvals/{approval_id}"): {"message"},
    ("GET", "/v1/tools"): set(),
    ("GET", "/v1/sessions"): {"read"},
    ("GET", "/v1/sessions/{session_id}"): {"read"},
    ("PATCH", "/v1/sessions/{session_id}"): set(),
    ("GET", "/v1/sessions/{session_id}/messages"): {"read"},
    ("GET", "/v1/sessions/{session_id}/export"): {"read"},
    ("POST", "/v1/sessions/{session_id}/fork"): set(),
    ("POST", "/v1/sessions/{session_id}/reset"): set(),
    ("DELETE", "/v1/sessions/{session_id}"): set(),
    ("GET", "/v1/search"): {"read"},
    ("GET", "/v1/events"): {"read"},
    ("GET", "/v1/schedules"): {"read"},
    ("POST", "/v1/schedules"): {"message"},
    ("GET", "/v1/schedules/{schedule_id}"): {"read"},
    ("DELETE", "/v1/schedules/{schedule_id}"): set(),
    ("POST", "/v1/schedules/{schedule_id}/pause"): set(),
    ("POST", "/v1/schedules/{schedule_id}/resume"): set(),
    ("POST", "/v1/schedules/{schedule_id}/run"): set(),
    ("GET", "/v1/users/{user_id}/memories"): {"memory"},
    ("POST", "/v1/users/{user_id}/memories"): {"memory"},
    ("DELETE", "/v1/users/{user_id}/memories"): {"memory"},
    ("GET", "/v1/users/{user_id}/memories/{memory_id}"): {"memory"},
    ("PATCH", "/v1/users/{user_id}/memories/{memory_id}"): {"memory"},
    ("DELETE", "/v1/users/{user_id}/memories/{memory_id}"): {"memory"},
    ("GET", "/v1/users/{user_id}/usage"): {"read"},
    ("GET", "/v1/users/{user_id}/export"): set(),
    ("DELETE", "/v1/users/{user_id}"): set(),
    ("GET", "/v1/usage"): set(),
    ("GET", "/v1/me"): None,
    ("POST", "/v1/sign-in-codes"): None,
    ("GET", "/v1/sign-in"): None,
    ("POST", "/v1/sign-in"): None,
    ("GET", "/v1/tokens"): set(),
    ("POST", "/v1/tokens"): set(),
    ("POST", "/v1/tokens/{token_id}/rotate"): set(),
    ("DELETE", "/v1/tokens/{token_id}"): set(),
    ("GET", "/v1/audit"): set(),
    ("GET", "/v1/status"): set(),
    ("GET", "/v1/settings"): set(),
    ("GET", "/v1/logs"): set(),
    ("GET", "/metrics"): set(),
    ("POST", "/v1/connectors/reload"): set(),
    ("GET", "/v1/deliveries"): set(),
    ("POST", "/v1/deliveries/{delivery_id}/retry"): set(),
    ("POST", "/v1/deliveries/{delivery_id}/drop"): set(),
    ("GET", "/v1/skills"): {"skills"},
    ("POST", "/v1/skills"): {"skills"},
    ("GET", "/v1/skills/{slug}"): {"skills"},
    ("DELETE", "/v1/skills/{slug}"): {"skills"},
    ("POST", "/v1/skills/{slug}/update"): {"skills"},
    ("POST", "/v1/skills/{slug}/disable"): {"skills"},
    ("POST", "/v1/skills/{slug}/enable"): set(),
    ("POST", "/v1/skills/{slug}/approve"): set(),
    ("GET", "/v1/pairing"): set(),
    ("POST", "/v1/pairing/approve"): set(),
    ("POST", "/v1/pairing/deny"): set(),
    ("GET", "/v1/mcp"): set(),
    ("POST", "/v1/mcp/{server}/approve"): set(),
}

#: Ends the stream of all events at once.
NO_WAIT = {"seconds": "0"}

#: Paths that the scope `message` permits, and to an unbound token only together with `read`: others created the
#: data.
OF_OTHERS = [
    ("GET", "/v1/approvals"),
    ("GET", "/v1/events"),
    ("GET", "/v1/turns/{turn_id}/calls"),
    ("PATCH", "/v1/sessions/{session_id}"),
    ("POST", "/v1/sessions/{session_id}/fork"),
    ("POST", "/v1/sessions/{session_id}/reset"),
    ("DELETE", "/v1/sessions/{session_id}"),
    ("GET", "/v1/schedules"),
    ("GET", "/v1/schedules/{schedule_id}"),
    ("DELETE", "/v1/schedules/{schedule_id}"),
    ("POST", "/v1/schedules/{schedule_id}/pause"),
    ("POST", "/v1/schedules/{schedule_id}/resume"),
    ("POST", "/v1/schedules/{schedule_id}/run"),
]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def open_client(start: Start) -> Callable[..., Awaitable[httpx2.AsyncClient]]:
    """``await open_client(model)`` returns the operator's client of a gateway with a token."""

    async def open_client(model: ScriptedModel | None = None) -> httpx2.AsyncClient:
        _, client = await start(model, gateway_token=OPERATOR)
        client.headers.update(bearer(OPERATOR))
        return client

    return open_client


@pytest.fixture
async def operator(open_client: Callable[..., Awaitable[httpx2.AsyncClient]]) -> httpx2.AsyncClient:
    return await open_client()


async def token(operator: httpx2.AsyncClient, **body: Any) -> dict[str, str]:
    """Create a token, and return its header."""
    return bearer((await operator.post("/v1/tokens", json=body)).json()["token"])


def test_scope_table_names_every_path():
    document = openapi(guarded=True)
    paths = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert paths - set(OPENED_BY) == set()


async def test_scope_opens_only_its_paths(operator: httpx2.AsyncClient):
    held = {scope: await token(operator, scopes=[scope]) for scope in get_args(Scope)}
    for scope, ((method, path), scopes) in product(held, OPENED_BY.items()):
        answer = await operator.request(method, path, headers=held[scope], params=NO_WAIT)
        refused = scopes is not None and scope not in (*scopes, "admin")
        assert (answer.status_code == 403) == refused, (scope, method, path)
        if refused:
            assert answer.json()["code"] == "scope_missing", (scope, method, path)


async def test_unbound_token_needs_extra_scope_for_turns_of_others(operator: httpx2.AsyncClient):
    unbound, hers, reader = [
        await token(operator, scopes=["message"]),
        await token(operator, scopes=["message"], user="alice"),
        await token(operator, scopes=["message", "read"]),
    ]
    for method, path in OF_OTHERS:
        refused, *let_in = [
            await operator.request(method, path, headers=held, params=NO_WAIT)
            for held in (unbound, hers, reader)
        ]
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing"), (method, path)
        assert "read" in refused.json()["detail"]
        assert 403 not in [answer.status_code for answer in let_in], (method, path)


async def test_scope_is_checked_before_body_is_read(operator: httpx2.AsyncClient):
    held = await token(operator, scopes=["read"])
    answer = await operator.post("/message", content=b"no JSON at all", headers=held)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


async def test_turn_of_other_owner_is_404(open_client: Callable[..., Awaitable[httpx2.AsyncClient]]):
    operator = await open_client(ScriptedModel([asyncio.Event(), "never"]))
    alice, bob = [await token(operator, user=user) for user in ("alice", "bob")]
    later = {"Prefer": "respond-async"}
    turn = (await operator.post("/message", json={"content": "hi"}, headers=alice | later)).json()
    unbound = await token(operator, scopes=["message", "read", "impersonate"])
    paths = [
        ("GET", f"/v1/turns/{turn['id']}"),
        ("GET", f"/v1/turns/{turn['id']}/events"),
        ("GET", f"/v1/turns/{turn['id']}/steps"),
        ("GET", f"/v1/turns/{turn['id']}/calls"),
        ("POST", f"/v1/turns/{turn['id']}/cancel"),
        ("POST", f"/v1/turns/{turn['id']}/retry"),
        ("GET", f"/v1/sessions/{turn['sessionId']}"),
        ("GET", f"/v1/sessions/{turn['sessionId']}/messages"),
    ]
    for method, path in paths:
        for held in (bob, unbound):
            answer = await operator.request(method, path, headers=held)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    assert (await operator.get(paths[0][1], headers=alice)).json()["status"] == "running"
    # The operator sees all data, and can change it.
    assert (await operator.post(f"/v1/turns/{turn['id']}/cancel")).json()["status"] == "cancelled"


async def test_owner_sees_own_sessions_and_operator_sees_all(operator: httpx2.AsyncClient):
    alice, bob = [await token(operator, user=user) for user in ("alice", "bob")]
    for held in (alice, bob, {}):
        body = {"content": "hi", "channelId": "home", **({} if held else {"userId": "alice"})}
        assert (await operator.post("/message", json=body, headers=held)).status_code == 200

    async def session_ids(headers: dict[str, str], **query: str) -> set[str]:
        listed = (await operator.get("/v1/sessions", headers=headers, params=query)).json()["items"]
        return {item["id"] for item in listed}

    hers, his, everyones = await session_ids(alice), await session_ids(bob), await session_ids({})
    # One channel id, and three sessions: a channel belongs to its owner.
    assert (len(hers), len(his), len(everyones)) == (1, 1, 3)
    assert hers | his < everyones
    assert hers.isdisjoint(his)
    assert await session_ids(bob, userId="alice") == set()
    assert await session_ids(bob, channelId="home") == his
    assert await session_ids(await token(operator, scopes=["read"])) == everyones - hers - his


async def test_same_key_of_different_owners_is_independent(operator: httpx2.AsyncClient):
    alice, bob = [await token(operator, user=user) for user in ("alice", "bob")]
    key = {"Idempotency-Key": "same"}
    answers = [
        await operator.post("/message", json={"content": "hi"}, headers=held | key)
        for held in (alice, bob, alice)
    ]
    ids = [answer.json()["id"] for answer in answers]
    assert ids[0] == ids[2] != ids[1]


async def test_stop_leaves_turns_of_other_owners_running(
    open_client: Callable[..., Awaitable[httpx2.AsyncClient]],
):
    operator = await open_client(ScriptedModel([asyncio.Event(), "never"]))
    alice, bob = [await token(operator, user=user) for user in ("alice", "bob")]
    body = {"content": "hi", "channelId": "home"}
    turn = (await operator.post("/message", json=body, headers=alice | {"Prefer": "respond-async"})).json()
    stopped = await operator.post("/message", json=body | {"content": "/stop"}, headers=bob)
    assert stopped.json()["reply"] == "Nothing is running here."
    assert (await operator.get(f"/v1/turns/{turn['id']}", headers=alice)).json()["status"] == "running"


async def test_two_tokens_of_same_user_share_owner(operator: httpx2.AsyncClient):
    phone, laptop = [await token(operator, user="alice", label=label) for label in ("phone", "laptop")]
    body = {"content": "hi", "channelId": "home"}
    sessions = [
        (await operator.post("/message", json=body, headers=held)).json()["sessionId"]
        for held in (phone, laptop)
    ]
    assert sessions[0] == sessions[1]
