"""``torana sessions``, which only reads."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from torana.messages import GATEWAY_OWNER, Inbound
from torana.store.engine.migrate import migrate
from torana.store.engine.sqlite import sqlite_engine
from torana.store.rows import turns as rows
from torana.store.rows.turns import Ending, NewTurn

Command = Callable[..., tuple[int, str, str]]

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.fixture
def add(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes an answered message and returns its session's id; the terminal is wide."""
    monkeypatch.setenv("COLUMNS", "200")
    database = place / "data" / "torana.db"
    database.parent.mkdir()
    migrate(database)
    added: list[str] = []

    def add(content: str, channel: str = "home", user: str = "ana", owner: str = GATEWAY_OWNER) -> str:
        added.append(content)
        at = AT + timedelta(hours=len(added))
        inbound = Inbound(owner=owner, principal="local", content=content, channel=channel, user=user)
        new = NewTurn(
            turn_id=f"turn_{len(added):032}",
            session_id=f"ses_{len(added):032}",
            channel=channel,
            at=at,
            title=content,
        )
        engine = sqlite_engine(database)
        with engine.begin() as connection:
            turn = rows.accept(connection, inbound, new, hold=False).turn
            ending = Ending(at=at, reply=f"re: {content}", model="m")
            rows.finish(connection, turn, ending, hold=False)
        engine.dispose()
        return turn.session_id

    return add


def test_sessions_are_listed_last_used_first(command: Command, add: Callable[..., str]):
    first, second = add("Trip to [bold]Porto"), add("hers", owner="user:ana")
    code, out, err = command("sessions", "list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if "ses_" in line] == [second, first]
    assert "Trip to [bold]Porto" in out


def test_json_list_is_filtered_and_limited(command: Command, add: Callable[..., str]):
    first, second = add("a"), add("b", channel="other", user="ben")

    def listed(*options: str) -> list[str]:
        return [item["id"] for item in json.loads(command("sessions", "list", "--json", *options)[1])["items"]]

    assert listed() == [second, first]
    assert listed("--channel", "home") == [first]
    assert listed("--user", "ben") == [second]
    assert listed("--limit", "1") == [second]
    assert listed("--channel", "nowhere") == []
    assert "There are no matching sessions." in command("sessions", "list", "--channel", "nowhere")[1]


def test_session_is_shown_with_its_last_turns(command: Command, add: Callable[..., str]):
    session_id, *_ = [add(content) for content in ("one", "two\x1b[2J", "three")]
    code, out, _ = command("sessions", "show", session_id, "--turns", "2")
    assert code == 0
    assert "title      one" in out
    assert "\x1b" not in out
    assert "> two\\x1b[2J" in out
    assert "> one" not in out
    shown = json.loads(command("sessions", "show", session_id, "--json")[1])
    assert (shown["id"], shown["channel"], shown["turns"]) == (session_id, "home", 3)
    said = [message["content"] for message in shown["messages"]]
    assert said == ["one", "re: one", "two\x1b[2J", "re: two\x1b[2J", "three", "re: three"]


def test_session_is_exported_completely_to_stdout(command: Command, add: Callable[..., str]):
    session_id, *_ = [add(f"line {number}\nü") for number in range(250)]
    code, out, _ = command("sessions", "export", session_id)
    messages = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [m["content"] for m in messages if m["role"] == "user"] == [f"line {n}\nü" for n in range(250)]
    assert list(messages[0]) == ["id", "turnId", "role", "content", "userId", "createdAt"]
    assert command("sessions", "export", session_id, "--format", "markdown")[1].startswith("# line 0 ü\n")


def test_exported_file_is_private_and_never_overwritten(command: Command, add: Callable[..., str], place: Path):
    session_id = add("hello")
    file = place / "out.md"
    code, out, _ = command("sessions", "export", session_id, "--format", "markdown", "-o", str(file))
    assert (code, out) == (0, "")
    assert "> hello" in file.read_text("utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, _, err = command("sessions", "export", session_id, "-o", str(file))
    assert (code, "already exists" in err) == (1, True)
    assert "> hello" in file.read_text("utf-8")
    code, _, err = command("sessions", "export", session_id, "-o", str(place / "no" / "where"))
    assert (code, "No such file" in err) == (1, True)


@pytest.mark.parametrize("what", ["show", "export"])
def test_unknown_session_is_an_error(command: Command, add: Callable[..., str], what: str):
    add("hello")
    code, out, err = command("sessions", what, "ses_unknown")
    assert (code, out) == (1, "")
    assert "there is no session ses_unknown" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--limit", "0"),
        ("show", "x", "--turns", "0"),
        ("export", "x", "--format", "pdf"),
        ("delete", "x"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    command: Command, add: Callable[..., str], arguments: tuple[str, ...]
):
    add("hello")
    assert command("sessions", *arguments)[0] == 2
