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
from torana.store.engine.lock import DataDirLock
from torana.store.engine.migrate import migrate
from torana.store.engine.sqlite import SqliteDatabase

Command = Callable[..., tuple[int, str, str]]

SECRET = re.compile(r"torana_[A-Za-z0-9_-]{43}")


def holder(place: Path, secret: str) -> Principal | None:
    """Return the principal that a gateway started now would give the secret."""
    database = SqliteDatabase(path=place / "data" / "torana.db")
    try:
        return asyncio.run(Tokens(database=database).authenticate(secret))
    finally:
        database.close()


def created(command: Command, *options: str) -> dict[str, Any]:
    code, out, err = command("token", "create", "--json", *options)
    assert code == 0
    assert not err or err.startswith("created a new database ")
    return json.loads(out)


def listed(command: Command, what: str = "token", *options: str) -> list[dict[str, Any]]:
    arguments = ("token", "list") if what == "token" else (what,)
    return json.loads(command(*arguments, "--json", *options)[1])["items"]


def test_token_can_be_created_before_the_first_start(command: Command, place: Path):
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


def test_creation_of_the_database_is_reported_with_its_path(command: Command, place: Path):
    there, elsewhere = place / "data" / "torana.db", place / "typo" / "torana.db"
    cure = "if the gateway uses another one, name its directory with --data-dir"
    _, _, err = command("token", "create", "--json")
    assert err == f"created a new database {there}; {cure}\n"
    assert command("token", "create", "--json")[2] == ""
    _, out, err = command("token", "create", "--data-dir", "typo")
    assert err.startswith(f"created a new database {elsewhere}; {cure}\ntok_")
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
def test_changing_commands_do_not_create_a_database(command: Command, place: Path, arguments: tuple[str, ...]):
    code, out, err = command(*arguments, "--data-dir", "typo")
    assert (code, out) == (1, "")
    assert err.startswith(f"there is no database {place / 'typo' / 'torana.db'} yet; ")
    assert not (place / "typo").exists()


def test_secret_is_printed_alone_on_stdout(command: Command):
    code, out, err = command("token", "create", "--user", "ali\x1bce")
    assert code == 0
    assert SECRET.fullmatch(out.rstrip("\n"))
    assert "bound to ali\\x1bce, never expires: memory, message, read" in err
    assert out.strip() not in err


def test_token_can_have_several_scopes(command: Command):
    assert created(command, "--scope", "message", "--scope", "impersonate")["scopes"] == [
        "impersonate",
        "message",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), ("12h", 43_200), ("30d", 2_592_000), ("never", None)]
)
def test_lifetimes_are_parsed(command: Command, text: str, seconds: int | None):
    created(command, "--expires", text)
    (item,) = listed(command)
    if seconds is None:
        assert item["expiresAt"] is None
    else:
        lifetime = datetime.fromisoformat(item["expiresAt"]) - datetime.fromisoformat(item["createdAt"])
        assert lifetime == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["soon", "30", "30 d", "-1d", "1.5h", "", "d", "999999999d", "1w", "٣d"])
def test_invalid_lifetime_is_a_usage_error(command: Command, place: Path, text: str):
    code, out, err = command("token", "create", f"--expires={text}")
    assert (code, out) == (2, "")
    assert "--expires" in err
    assert not (place / "data").exists()


def test_invalid_scope_is_a_usage_error_with_all_scopes(command: Command):
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
def test_invalid_token_is_refused_in_one_line(command: Command, options: tuple[str, ...]):
    code, out, err = command("token", "create", *options)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert listed(command) == []


def test_rotation_creates_a_new_token_and_ends_the_old_one(command: Command, place: Path):
    old = created(command, "--user", "alice")
    code, out, _ = command("token", "rotate", old["id"], "--overlap", "0", "--json")
    new = json.loads(out)
    assert (code, new["user"]) == (0, "alice")
    assert holder(place, old["token"]) is None
    assert holder(place, new["token"])
    newest, oldest = listed(command)
    assert (newest["replaces"], oldest["status"]) == (old["id"], "expired")


def test_rotation_overlap_is_an_hour_by_default(command: Command, place: Path):
    old = created(command)
    command("token", "rotate", old["id"])
    newest, oldest = listed(command)
    assert holder(place, old["token"])
    overlap = datetime.fromisoformat(oldest["expiresAt"]) - datetime.fromisoformat(newest["createdAt"])
    assert overlap == timedelta(hours=1)


def test_revocation_ends_a_token_and_is_confirmed(command: Command, place: Path):
    token = created(command)
    for _ in range(2):
        assert command("token", "revoke", token["id"]) == (0, f"{token['id']} is revoked\n", "")
    assert holder(place, token["token"]) is None
    code, out, err = command("token", "rotate", token["id"])
    assert (code, out, err) == (1, "", "The token is revoked; create a new one.\n")


@pytest.mark.parametrize("what", ["rotate", "revoke"])
@pytest.mark.parametrize("token_id", ["tok_0", "", "../..", "' OR 1=1", "é"])
def test_unknown_token_is_reported_in_one_line(command: Command, what: str, token_id: str):
    created(command)
    code, out, err = command("token", what, token_id)
    assert (code, out, err) == (
        1,
        "",
        f"there is no token {token_id!r}; `torana token list` lists all tokens\n",
    )


def test_list_is_limited_and_shows_no_secret(command: Command):
    first, second = created(command, "--label", "[red]x"), created(command)
    code, out, err = command("token", "list")
    assert (code, err) == (0, "")
    assert "[red]x" in out
    assert out.index(second["id"]) < out.index(first["id"])
    assert not SECRET.search(out)
    assert [item["id"] for item in listed(command, "token", "--limit", "1")] == [second["id"]]


def test_empty_lists_are_reported(command: Command, place: Path):
    (place / "data").mkdir()
    migrate(place / "data" / "torana.db")
    assert command("token", "list") == (0, "There are no tokens besides the gateway token.\n", "")
    assert command("audit") == (0, "There are no recorded actions yet.\n", "")


def test_audit_record_has_a_line_for_each_action(command: Command):
    token = created(command, "--user", "[red]ali\x1bce")
    _, line = command("audit")[1].splitlines()
    assert line.split()[2:7] == ["operator", "command", "line", "token.create", token["id"]]
    assert "user: [red]ali\\x1bce" in line


def test_commands_are_in_the_audit_record(command: Command):
    token = created(command, "--user", "alice")
    command("token", "rotate", token["id"])
    command("token", "revoke", token["id"])
    entries = listed(command, "audit")
    assert [entry["action"] for entry in entries] == ["token.revoke", "token.rotate", "token.create"]
    assert {(entry["principal"], entry["source"]) for entry in entries} == {("operator", "command line")}
    assert {entry["target"] for entry in entries} == {token["id"]}
    assert len(listed(command, "audit", "--limit", "2")) == 2


@pytest.mark.parametrize("what", [("token", "list"), ("audit",)])
def test_reading_commands_do_not_create_a_database(command: Command, place: Path, what: tuple[str, ...]):
    code, out, err = command(*what)
    assert (code, out) == (1, "")
    assert "--data-dir" in err
    assert not (place / "data").exists()


def test_token_creation_is_refused_while_another_command_runs(command: Command, place: Path):
    created(command)
    with DataDirLock(data_dir=place / "data", address="torana restore"):
        code, out, err = command("token", "create")
    assert (code, out) == (1, "")
    told = f"the data directory {place / 'data'} is being used by torana restore; try again when it has ended"
    assert err.strip() == told
    assert len(listed(command)) == 1
