"""The identity of a request: ``GET /v1/me``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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
