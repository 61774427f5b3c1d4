"""``torana token`` while a gateway runs: changes apply at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from torana.store.engine.lock import read_address

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

OPERATOR = {"TORANA_GATEWAY_TOKEN": "a-token-of-more-than-sixteen-characters"}


def _create_token(place: Place, *arguments: str) -> dict[str, Any]:
    code, out, err = place.run("token", *arguments, "--json", **OPERATOR)
    assert (code, err.partition(" /")[0]) in ((0, ""), (0, "created a new database"))
    return json.loads(out)


def _status(place: Place, token: dict[str, Any]) -> int:
    url = f"{read_address(place.data_dir)}/skills"
    headers = {"Authorization": f"Bearer {token['token']}"}
    return httpx2.get(url, headers=headers, timeout=30, trust_env=False).status_code


def test_token_is_created_rotated_and_revoked_beside_a_gateway(place: Place) -> None:
    place.serve(**OPERATOR)
    old = _create_token(place, "create", "--user", "alice", "--expires", "30d")
    assert (old["user"], _status(place, old)) == ("alice", 200)
    new = _create_token(place, "rotate", old["id"])
    assert (_status(place, old), _status(place, new)) == (200, 200)
    assert place.run("token", "revoke", new["id"], **OPERATOR) == (0, f"{new['id']} is revoked\n", "")
    assert (_status(place, old), _status(place, new)) == (200, 401)
    refused = place.run("token", "rotate", new["id"], **OPERATOR)
    assert refused == (1, "", "The token is revoked; create a new one.\n")
    code, out, _ = place.run("audit", "--json")
    entries = json.loads(out)["items"]
    assert code == 0
    assert [entry["action"] for entry in entries] == ["token.revoke", "token.rotate", "token.create"]
    assert {(entry["principal"], entry["source"]) for entry in entries} == {("operator", "127.0.0.1")}


def test_token_created_before_the_start_is_valid(place: Place) -> None:
    token = _create_token(place, "create", "--user", "alice")
    place.serve(**OPERATOR)
    assert _status(place, token) == 200


def test_invalid_token_is_refused_in_one_line(place: Place) -> None:
    place.serve(**OPERATOR)
    for options in (
        ("--user", ""),
        ("--user", "\udcff"),
        ("--expires", "0s"),
        ("--user", "a", "--scope", "admin"),
    ):
        code, out, err = place.run("token", "create", *options, **OPERATOR)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "did not answer" not in err
    assert json.loads(place.run("token", "list", "--json")[1]) == {"items": []}


def test_token_creation_needs_the_gateways_token(place: Place) -> None:
    place.serve(**OPERATOR)
    code, out, err = place.run("token", "create", "--scope", "admin")
    assert (code, out) == (1, "")
    assert "set TORANA_GATEWAY_TOKEN" in err
    assert json.loads(place.run("token", "list", "--json")[1]) == {"items": []}
