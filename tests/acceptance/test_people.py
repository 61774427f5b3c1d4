"""Several users of one gateway, set up by its operator with the installed commands over real sockets."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.health import certificates

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

OPERATOR = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"
#: A word that occurs nowhere else.
MARK = "zanzibarisch"

Command = Callable[..., str]


@pytest.fixture
def gateway(new_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway with a token, on which each user may send eight messages a day."""
    gateway = new_gateway(TORANA_GATEWAY_TOKEN=OPERATOR, TORANA_LIMITS_PER_USER="8 messages/day")
    gateway.start()
    return gateway


@pytest.fixture
def torana(installed: Path, gateway: Gateway) -> Command:
    """``torana("token", "list")`` returns the output of the installed command beside the gateway."""

    def run(*arguments: str) -> str:
        environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(gateway.home),
            "TORANA_DATA_DIR": str(gateway.data_dir),
            "TORANA_GATEWAY_TOKEN": OPERATOR,
        }
        command = [str(installed / "torana"), *arguments]
        done = subprocess.run(
            command, cwd=gateway.home, env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def client(gateway: Gateway, token: str) -> httpx2.Client:
    """Return a client with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.Client(
        base_url=gateway.url, headers=headers, timeout=30, trust_env=False, verify=certificates()
    )


def say(person: httpx2.Client, content: str) -> dict[str, Any]:
    """Return the answer to a message in the channel that all users call home."""
    answer = person.post("message", json={"content": content, "channelId": "home"})
    return answer.raise_for_status().json()


def test_two_users_share_a_gateway_without_access_to_each_other(gateway: Gateway, torana: Command) -> None:
    tokens = {user: torana("token", "create", "--user", user).strip() for user in ("alice", "bob")}
    with client(gateway, tokens["alice"]) as alice, client(gateway, tokens["bob"]) as bob:
        hers = say(alice, f"remember that my cat is called {MARK}")
        assert MARK in say(alice, "what is my cat called?")["reply"]

        assert MARK not in say(bob, "what is my cat called?")["reply"]
        assert MARK not in say(bob, "what did I say first?")["reply"]
        for place in (f"v1/turns/{hers['id']}", f"v1/sessions/{hers['sessionId']}", "v1/users/alice/memories"):
            assert (alice.get(place).status_code, bob.get(place).status_code) == (200, 404), place
        named = bob.post("message", json={"content": "hi", "userId": "alice"})
        assert (named.status_code, named.json()["code"]) == (403, "wrong_user")

        (token,) = (
            item for item in json.loads(torana("token", "list", "--json"))["items"] if item["user"] == "bob"
        )
        torana("token", "revoke", token["id"])
        assert bob.get("v1/sessions").status_code == 401
        assert alice.get("v1/sessions").status_code == 200
    done = [entry["action"] for entry in json.loads(torana("audit", "--json"))["items"]]
    assert done == ["token.revoke", "token.create", "token.create"]


def test_budget_of_a_user_survives_a_restart(gateway: Gateway, torana: Command) -> None:
    token = torana("token", "create", "--user", "alice").strip()
    with client(gateway, token) as alice:
        for _ in range(5):
            say(alice, "hello")
    gateway.stop()
    gateway.start()
    with client(gateway, token) as alice:
        answers = [alice.post("message", json={"content": "hello"}) for _ in range(4)]
        used = alice.get("v1/users/alice/usage").json()
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].json()["violatedPolicies"] == ["user-messages-day"]
    assert '"user-messages-day";used=75' in answers[0].headers["Torana-Budget-Warning"]
    assert (
        used["today"]["messages"]
        == json.loads(torana("usage", "--user", "alice", "--json"))["today"]["messages"]
        == 8
    )


def test_user_is_exported_and_erased_completely(gateway: Gateway, torana: Command) -> None:
    token = torana("token", "create", "--user", "alice", "--label", f"her {MARK}").strip()
    with client(gateway, token) as alice, client(gateway, OPERATOR) as operator:
        turn = say(alice, f"remember that my cat is called {MARK}")["id"]
        say(operator, "hello")
        torana("user", "export", "alice", "-o", "alice.zip")
        with zipfile.ZipFile(io.BytesIO((gateway.home / "alice.zip").read_bytes())) as exported:
            assert MARK in exported.read("memories.jsonl").decode()
        assert holding(gateway, MARK)

        receipt = json.loads(torana("user", "erase", "alice", "--yes", "--json"))

        assert (receipt["counts"]["turns"], receipt["counts"]["memories"]) == (1, 1)
        assert holding(gateway, MARK) == []
        assert alice.get("v1/sessions").status_code == 401
        assert operator.get(f"v1/turns/{turn}").status_code == 410
        assert len(operator.get("v1/sessions").json()["items"]) == 1
    gateway.stop()
    assert holding(gateway, MARK) == []


def holding(gateway: Gateway, text: str) -> list[str]:
    """Return the files of the data directory that contain a text."""
    files = [file for file in gateway.data_dir.rglob("*") if file.is_file()]
    return [file.name for file in files if text.encode() in file.read_bytes()]
