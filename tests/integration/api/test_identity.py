"""The identity of a request, and sign-in by a one-time code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from torana.app import App

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

OPERATOR = "a-token-of-more-than-sixteen-characters"
ALL = ["admin", "impersonate", "memory", "message", "read", "skills"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def without_token(name: str) -> dict[str, object]:
    return {"name": name, "tokenId": None, "label": None, "userId": None, "scopes": ALL, "expiresAt": None}


async def test_identity_of_gateway_token(start: Start):
    _, client = await start(gateway_token=OPERATOR)
    answer = await client.get("/v1/me", headers=bearer(OPERATOR))
    assert (answer.status_code, answer.json()) == (200, without_token("operator"))
    assert answer.headers["cache-control"] == "no-store"
    assert (await client.get("/v1/me")).status_code == 401


async def test_identity_on_gateway_without_token(client: httpx2.AsyncClient):
    assert (await client.get("/v1/me")).json() == without_token("local")


@pytest.mark.parametrize("scope", ["message", "read", "skills", "memory"])
async def test_identity_of_token_with_any_scope(client: httpx2.AsyncClient, scope: str):
    request = {"user": "alice", "scopes": [scope], "label": "phone", "expiresIn": 3600}
    made = (await client.post("/v1/tokens", json=request)).json()
    assert (await client.get("/v1/me", headers=bearer(made["token"]))).json() == {
        "name": f"token:{made['id']}",
        "tokenId": made["id"],
        "label": "phone",
        "userId": "alice",
        "scopes": [scope],
        "expiresAt": made["expiresAt"],
    }


async def test_identity_of_rotated_token_without_label_is_its_own(client: httpx2.AsyncClient):
    old = (await client.post("/v1/tokens", json={"scopes": ["admin"]})).json()
    new = (await client.post(f"/v1/tokens/{old['id']}/rotate")).json()
    found = (await client.get("/v1/me", headers=bearer(new["token"]))).json()
    assert (found["tokenId"], found["label"], found["scopes"]) == (new["id"], None, ALL)


@pytest.fixture
async def operator(start: Start) -> httpx2.AsyncClient:
    """A client of a gateway with a token, which it sends."""
    _, client = await start(gateway_token=OPERATOR)
    client.headers.update(bearer(OPERATOR))
    return client


async def code_for(client: httpx2.AsyncClient, body: dict[str, Any], **headers: str) -> str:
    answer = await client.post("/v1/sign-in-codes", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["code"]


async def test_code_is_exchanged_once_for_a_token(operator: httpx2.AsyncClient):
    body = {"scopes": ["message", "read"], "user": "alice", "expiresIn": 3600}
    made = await operator.post("/v1/sign-in-codes", json=body)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    assert {name: made.json()[name] for name in ("user", "scopes")} == {
        "user": "alice",
        "scopes": ["message", "read"],
    }
    signed_in = await operator.post("/api/v1/sign-in", headers=bearer(made.json()["code"]))
    assert (signed_in.status_code, signed_in.headers["cache-control"]) == (201, "no-store")
    token = signed_in.json()
    created, expires = (datetime.fromisoformat(token[name]) for name in ("createdAt", "expiresAt"))
    assert expires - created == timedelta(hours=1)

    me = (await operator.get("/v1/me", headers=bearer(token["token"]))).json()
    assert (me["tokenId"], me["userId"], me["scopes"]) == (token["id"], "alice", ["message", "read"])
    again = await operator.post("/v1/sign-in", headers=bearer(made.json()["code"]))
    assert (again.status_code, again.json()["code"]) == (401, "unauthorized")

    entries = (await operator.get("/v1/audit")).json()["items"]
    assert [(one["principal"], one["action"], one["target"]) for one in entries] == [
        ("operator", "sign_in", token["id"]),
        ("operator", "sign_in_code.create", made.json()["id"]),
    ]


@pytest.mark.parametrize("user", ["alice", None])
async def test_account_of_a_code_is_known_before_it_is_used(operator: httpx2.AsyncClient, user: str | None):
    made = (await operator.post("/v1/sign-in-codes", json={"scopes": ["message"], "user": user})).json()
    for _ in range(2):
        account = await operator.get("/v1/sign-in", headers=bearer(made["code"]))
        assert (account.status_code, account.headers["cache-control"]) == (200, "no-store")
        assert account.json() == {
            "createdBy": "operator",
            "user": user,
            "scopes": ["message"],
            "expiresAt": made["expiresAt"],
        }

    assert (await operator.post("/v1/sign-in", headers=bearer(made["code"]))).status_code == 201
    assert (await operator.get("/v1/sign-in", headers=bearer(made["code"]))).status_code == 401
    assert (await operator.get("/v1/sign-in")).status_code == 401


async def test_one_of_two_browsers_signs_in_with_a_code(operator: httpx2.AsyncClient):
    code = await code_for(operator, {})
    attempts = [operator.post("/v1/sign-in", headers=bearer(code)) for _ in range(2)]
    assert sorted([one.status_code for one in await asyncio.gather(*attempts)]) == [201, 401]


async def test_code_is_no_token(operator: httpx2.AsyncClient):
    code = await code_for(operator, {})
    for path in ("/v1/me", "/skills", "/"):
        assert (await operator.get(path, headers=bearer(code))).status_code == 401
    assert (await operator.post("/v1/sign-in", headers=bearer(code))).status_code == 201


async def test_code_without_a_body_has_the_rights_of_its_token(operator: httpx2.AsyncClient):
    body = {"user": "alice", "scopes": ["message"], "expiresIn": 600}
    made = (await operator.post("/v1/tokens", json=body)).json()
    answer = await operator.post("/v1/sign-in-codes", headers=bearer(made["token"]))
    token = (await operator.post("/v1/sign-in", headers=bearer(answer.json()["code"]))).json()
    assert (token["user"], token["scopes"], token["expiresAt"]) == ("alice", ["message"], made["expiresAt"])

    await operator.delete(f"/v1/tokens/{made['id']}")
    assert (await operator.get("/v1/me", headers=bearer(token["token"]))).status_code == 401


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"scopes": ["admin"]}, 403, "scope_missing"),
        ({"user": "bob"}, 403, "wrong_user"),
        ({"scopes": []}, 400, "invalid_field"),
        ({"scopes": ["root"]}, 400, "invalid_field"),
        ({"expiresIn": 43_201}, 400, "invalid_field"),
        ({"expiresIn": 0}, 400, "invalid_field"),
    ],
)
async def test_code_beyond_the_rights_of_its_token_is_refused(
    operator: httpx2.AsyncClient, body: dict[str, Any], status: int, code: str
):
    made = (await operator.post("/v1/tokens", json={"user": "alice"})).json()
    answer = await operator.post("/v1/sign-in-codes", json=body, headers=bearer(made["token"]))
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_code_counts_as_a_message(start: Start):
    _, client = await start(gateway_token=OPERATOR, rate_per_user=1)
    made = await client.post("/v1/tokens", json={"user": "alice"}, headers=bearer(OPERATOR))
    of_alice = bearer(made.json()["token"])
    await code_for(client, {}, **of_alice)
    refused = await client.post("/v1/sign-in-codes", headers=of_alice)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1


async def test_gateway_without_token_needs_no_sign_in(client: httpx2.AsyncClient):
    paths = [("POST", "/v1/sign-in-codes"), ("POST", "/v1/sign-in"), ("GET", "/v1/sign-in")]
    for answer in [await client.request(method, path) for method, path in paths]:
        assert (answer.status_code, answer.json()["code"]) == (409, "sign_in_not_needed")
        assert "no sign-in is needed" in answer.json()["detail"]


async def test_erased_user_cannot_sign_in_with_an_open_code(operator: httpx2.AsyncClient):
    code = await code_for(operator, {"user": "alice"})
    assert (await operator.delete("/v1/users/alice")).status_code == 200
    assert (await operator.post("/v1/sign-in", headers=bearer(code))).status_code == 401
