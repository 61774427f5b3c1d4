"""``torana token`` and ``torana audit`` without a running gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from torana.messages import Principal
from torana.people.tokens import Tokens
from torana.store.database import Database
from torana.store.lock import DataDirLock
from torana.store.migrate import migrate

Command = Callable[..., tuple[int, str, str]]

SECRET = re.compile(r"torana_[A-Za-z0-9_-]{43}")


def holder(place: Path, secret: str) -> Principal | None:
    """Who a gateway that starts now would take the secret's holder for."""
    database = Database(path=place / "data" / "torana.db")
    try:
        return asyncio.run(Tokens(database=database).authenticate(secret))
    finally:
        database.close()


def created(command: Command, *options: str) -> dict[str, Any]:
    code, out, err = command("token", "create", "--json", *options)
    assert code == 0
    assert not err or err.startswith("made a new database ")
    return json.loads(out)


def listed(command: Command, what: str = "token", *options: str) -> list[dict[str, Any]]:
    arguments = ("token", "list") if what == "token" else (what,)
    return json.loads(command(*arguments, "--json", *options)[1])["items"]


def test_a_token_is_made_before_the_first_start(command: Command, place: Path):
    token = created(command, "--user", "alice", "--scope", "message", "--expires", "30d", "--label", "phone")
    assert list(token) == ["id", "token", "user", "scopes", "expiresAt"]
    assert (token["user"], token["scopes"]) == ("alice", ["message"])
    known = holder(place, token["token"])
    assert known
    assert (known.user, known.owner, known.scopes) == ("alice", "user:alice", {"message"})
    (item,) = listed(command)
    assert (item["id"], item["label"], item["status"]) == (token["id"], "phone", "active")
    lifetime = datetime.fromisoformat(item["expiresAt"]) - datetime.fromisoformat(item["createdAt"])
    assert lifetime == timedelta(days=30)


def test_where_a_token_makes_the_database_it_says_so_and_names_the_place(command: Command, place: Path):
    there, elsewhere = place / "data" / "torana.db", place / "typo" / "torana.db"
    cure = "if the gateway has another, name its place with --data-dir"
    _, _, err = command("token", "create", "--json")
    assert err == f"made a new database {there}; {cure}\n"
    assert command("token", "create", "--json")[2] == ""
    _, out, err = command("token", "create", "--data-dir", "typo")
    assert err.startswith(f"made a new database {elsewhere}; {cure}\ntok_")
    assert SECRET.fullmatch(out.rstrip("\n"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "revoke", "tok_1"),
        ("token", "rotate", "tok_1"),
        ("pair", "approve", "ABCDEFGH"),
        ("pair", "deny", "telegram:1"),
    ],
)
def test_what_can_only_change_what_is_there_makes_nothing(
    command: Command, place: Path, arguments: tuple[str, ...]
):
    code, out, err = command(*arguments, "--data-dir", "typo")
    assert (code, out) == (1, "")
    assert err.startswith(f"there is no database {place / 'typo' / 'torana.db'} yet; ")
    assert not (place / "typo").exists()


def test_for_a_person_the_secret_stands_alone_on_standard_output(command: Command):
    code, out, err = command("token", "create", "--user", "ali\x1bce")
    assert code == 0
    assert SECRET.fullmatch(out.rstrip("\n"))
    assert "bound to ali\\x1bce, never expires: memory, message, read" in err
    assert out.strip() not in err


def test_several_scopes(command: Command):
    assert created(command, "--scope", "message", "--scope", "impersonate")["scopes"] == [
        "impersonate",
        "message",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), ("12h", 43_200), ("30d", 2_592_000), ("never", None)]
)
def test_how_a_lifetime_is_written(command: Command, text: str, seconds: int | None):
    created(command, "--expires", text)
    (item,) = listed(command)
    if seconds is None:
        assert item["expiresAt"] is None
    else:
        lifetime = datetime.fromisoformat(item["expiresAt"]) - datetime.fromisoformat(item["createdAt"])
        assert lifetime == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["soon", "30", "30 d", "-1d", "1.5h", "", "d", "999999999d", "1w", "٣d"])
def test_what_is_no_lifetime_is_a_usage_error(command: Command, place: Path, text: str):
    code, out, err = command("token", "create", f"--expires={text}")
    assert (code, out) == (2, "")
    assert "--expires" in err
    assert not (place / "data").exists()


def test_what_is_no_scope_is_a_usage_error_that_names_them_all(command: Command):
    code, out, err = command("token", "create", "--scope", "root")
    assert (code, out) == (2, "")
    assert all(scope in err for scope in ("message", "read", "skills", "memory", "admin", "impersonate"))


@pytest.mark.parametrize(
    "options",
    [
        ("--user", ""),
        ("--user", "x" * 257),
        ("--user", "\udcff"),
        ("--user", "alice", "--scope", "admin"),
        ("--user", "alice", "--scope", "impersonate"),
        ("--label", "x" * 101),
        ("--expires", "0s"),
        ("--expires", "99999d"),
    ],
)
def test_a_token_that_cannot_be_is_one_line(command: Command, options: tuple[str, ...]):
    code, out, err = command("token", "create", *options)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert listed(command) == []


def test_rotating_makes_another_one_and_lets_the_old_one_end(command: Command, place: Path):
    old = created(command, "--user", "alice")
    code, out, _ = command("token", "rotate", old["id"], "--overlap", "0", "--json")
    new = json.loads(out)
    assert (code, new["user"]) == (0, "alice")
    assert holder(place, old["token"]) is None
    assert holder(place, new["token"])
    newest, oldest = listed(command)
    assert (newest["replaces"], oldest["status"]) == (old["id"], "expired")


def test_by_default_both_are_taken_for_an_hour(command: Command, place: Path):
    old = created(command)
    command("token", "rotate", old["id"])
    newest, oldest = listed(command)
    assert holder(place, old["token"])
    overlap = datetime.fromisoformat(oldest["expiresAt"]) - datetime.fromisoformat(newest["createdAt"])
    assert overlap == timedelta(hours=1)


def test_revoking_ends_one_and_says_so(command: Command, place: Path):
    token = created(command)
    for _ in range(2):
        assert command("token", "revoke", token["id"]) == (0, f"{token['id']} is revoked\n", "")
    assert holder(place, token["token"]) is None
    code, out, err = command("token", "rotate", token["id"])
    assert (code, out, err) == (1, "", "The token is revoked; create a new one.\n")


@pytest.mark.parametrize("what", ["rotate", "revoke"])
@pytest.mark.parametrize("token_id", ["tok_0", "", "../..", "' OR 1=1", "é"])
def test_a_token_that_is_not_there_is_one_line(command: Command, what: str, token_id: str):
    created(command)
    code, out, err = command("token", what, token_id)
    assert (code, out, err) == (1, "", f"there is no token {token_id!r}; `torana token list` names them\n")


def test_the_list_is_bounded_and_shows_no_secret(command: Command):
    first, second = created(command, "--label", "[red]x"), created(command)
    code, out, err = command("token", "list")
    assert (code, err) == (0, "")
    assert "[red]x" in out
    assert out.index(second["id"]) < out.index(first["id"])
    assert not SECRET.search(out)
    assert [item["id"] for item in listed(command, "token", "--limit", "1")] == [second["id"]]


def test_where_there_is_nothing_yet_it_says_so(command: Command, place: Path):
    (place / "data").mkdir()
    migrate(place / "data" / "torana.db")
    assert command("token", "list") == (0, "There are no tokens but the gateway's own.\n", "")
    assert command("audit") == (0, "Nothing was done yet.\n", "")


def test_the_audit_record_is_a_line_for_each_act(command: Command):
    token = created(command, "--user", "[red]ali\x1bce")
    _, line = command("audit")[1].splitlines()
    assert line.split()[2:7] == ["operator", "command", "line", "token.create", token["id"]]
    assert "user: [red]ali\\x1bce" in line


def test_what_was_done_by_hand_is_in_the_audit_record(command: Command):
    token = created(command, "--user", "alice")
    command("token", "rotate", token["id"])
    command("token", "revoke", token["id"])
    entries = listed(command, "audit")
    assert [entry["action"] for entry in entries] == ["token.revoke", "token.rotate", "token.create"]
    assert {(entry["principal"], entry["source"]) for entry in entries} == {("operator", "command line")}
    assert {entry["target"] for entry in entries} == {token["id"]}
    assert len(listed(command, "audit", "--limit", "2")) == 2


@pytest.mark.parametrize("what", [("token", "list"), ("audit",)])
def test_without_a_database_nothing_is_made_to_be_read(command: Command, place: Path, what: tuple[str, ...]):
    code, out, err = command(*what)
    assert (code, out) == (1, "")
    assert "--data-dir" in err
    assert not (place / "data").exists()


def test_beside_another_command_nothing_is_changed(command: Command, place: Path):
    created(command)
    with DataDirLock(data_dir=place / "data", address="torana restore"):
        code, out, err = command("token", "create")
    assert (code, out) == (1, "")
    told = f"the data directory {place / 'data'} is being used by torana restore; try again when it has ended"
    assert err.strip() == told
    assert len(listed(command)) == 1
