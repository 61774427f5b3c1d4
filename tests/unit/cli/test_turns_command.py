"""``torana turns`` without a running gateway, and with servers that are not gateways."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from torana.messages import GATEWAY_OWNER, Failure, Inbound, Turn
from torana.store.engine.lock import DataDirLock
from torana.store.engine.migrate import migrate
from torana.store.engine.sqlite import sqlite_engine
from torana.store.rows import turns as rows
from torana.store.rows.turns import Ending, NewTurn

Command = Callable[..., tuple[int, str, str]]

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
DONE = Ending(at=AT + timedelta(seconds=5), reply="Paris.", model="m")
FAILED = replace(DONE, state="failed", reply=None, failure=Failure(code="model_failed", detail="no credit"))


@pytest.fixture
def add(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Turn]:
    """Writes a turn and, if given, its end; the terminal is wide."""
    monkeypatch.setenv("COLUMNS", "200")
    database = place / "data" / "torana.db"
    database.parent.mkdir()
    migrate(database)
    added: list[str] = []

    def add(content: str, ending: Ending | None = None, owner: str = GATEWAY_OWNER) -> Turn:
        number = len(added)
        added.append(content)
        inbound = Inbound(owner=owner, principal="local", content=content, channel="home", user="ana")
        new = NewTurn(
            turn_id=f"turn_{number:032}",
            session_id=f"ses_{number}",
            channel="home",
            at=AT + timedelta(hours=number),
        )
        engine = sqlite_engine(database)
        with engine.begin() as connection:
            turn = rows.accept(connection, inbound, new, hold=False).turn
            if ending is not None:
                rows.finish(connection, turn, ending, hold=False)
        engine.dispose()
        return turn

    return add


def test_turns_are_listed_newest_first_with_failures(command: Command, add: Callable[..., Turn]):
    first, second = add("capital of France?", DONE), add("and of Spain?", FAILED)
    code, out, err = command("turns", "list")
    assert (code, err) == (0, "")
    _, *lines = out.splitlines()
    assert [line.split()[:2] for line in lines if "turn_" in line] == [
        [second.id, "failed"],
        [first.id, "completed"],
    ]
    heads, failed, _ = out.splitlines()
    assert heads.split()[-2:] == ["message", "error"]
    assert "and of Spain?  " in failed
    assert "no credit" in failed


def test_list_without_failures_has_no_column_for_errors(command: Command, add: Callable[..., Turn]):
    add("capital of France?", DONE)
    heads, _ = command("turns", "list")[1].splitlines()
    assert heads.split() == ["turn", "state", "channel", "accepted", "message"]


def test_json_list_has_all_fields(command: Command, add: Callable[..., Turn]):
    turn = add("capital of France?", DONE)
    code, out, _ = command("turns", "list", "--json")
    [item] = json.loads(out)["items"]
    assert code == 0
    assert (item["id"], item["state"], item["channel"], item["user"]) == (turn.id, "completed", "home", "ana")
    assert (item["content"], item["reply"], item["failure"]) == ("capital of France?", "Paris.", None)


def test_list_is_filtered_by_state_and_limited(command: Command, add: Callable[..., Turn]):
    for _ in range(3):
        add("hi", DONE)
    failed = add("hi", FAILED)

    def listed(*options: str) -> list[str]:
        return [item["id"] for item in json.loads(command("turns", "list", "--json", *options)[1])["items"]]

    assert listed("--state", "failed") == [failed.id]
    assert listed("--state", "queued") == []
    assert listed("--limit", "2") == [failed.id, "turn_" + "2".zfill(32)]


def test_operator_sees_turns_of_every_owner(command: Command, add: Callable[..., Turn]):
    other = add("hers", DONE, "user:ana")
    assert other.id in command("turns", "list")[1]
    assert command("turns", "show", other.id)[0] == 0


@pytest.mark.parametrize("options", [("--state", "lost"), ("--limit", "0"), ("--limit", "1001")])
def test_invalid_list_options_are_usage_errors(
    command: Command, add: Callable[..., Turn], options: tuple[str, str]
):
    add("hi", DONE)
    code, _, err = command("turns", "list", *options)
    assert code == 2
    assert options[0] in err


@pytest.mark.parametrize("content", ["[/red]", "[bold]x", ":smile:", "\x1b[31mred", "two\nlines", "\u202eabc"])
def test_control_characters_of_a_message_are_escaped(command: Command, add: Callable[..., Turn], content: str):
    add(content, DONE)
    code, out, err = command("turns", "list")
    assert (code, err) == (0, "")
    assert not {"\x1b", "\u202e"} & set(out)
    for word in content.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e").split():
        assert word in out


def test_failed_turn_is_shown_with_its_failure(command: Command, add: Callable[..., Turn]):
    turn = add("and of Spain?", FAILED)
    code, out, err = command("turns", "show", turn.id)
    assert (code, err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert shown["state"] == "failed"
    assert shown["failure"] == "model_failed: no credit"
    assert shown["reply"] == "-"
    assert json.loads(command("turns", "show", turn.id, "--json")[1])["failure"] == "model_failed: no credit"


@pytest.mark.parametrize("turn_id", ["turn_0", "", "x" * 1000, "é", "../.."])
def test_unknown_turn_is_reported_in_one_line(command: Command, add: Callable[..., Turn], turn_id: str):
    add("hi", DONE)
    code, out, err = command("turns", "show", turn_id)
    assert (code, out) == (1, "")
    assert err.startswith(f"there is no turn {turn_id}")
    assert "torana turns list" in err


@pytest.mark.parametrize("what", [("list",), ("show", "turn_0")])
def test_missing_database_is_reported_with_its_path(command: Command, place: Path, what: tuple[str, ...]):
    code, out, err = command("turns", *what)
    assert (code, out) == (1, "")
    assert str(place / "data") in err
    assert "--data-dir" in err
    assert not (place / "data").exists()


def test_invalid_database_file_is_reported_in_one_line(command: Command, place: Path):
    (place / "data").mkdir()
    (place / "data" / "torana.db").write_bytes(b"no database at all" * 100)
    code, out, err = command("turns", "list")
    assert (code, out) == (1, "")
    assert "not a database" in err
    assert "torana doctor" in err


@pytest.mark.parametrize("what", ["retry", "cancel"])
def test_changes_are_refused_without_a_gateway(command: Command, add: Callable[..., Turn], what: str):
    turn = add("hi", FAILED)
    code, out, err = command("turns", what, turn.id)
    assert (code, out) == (1, "")
    assert "torana serve" in err
    assert json.loads(command("turns", "show", turn.id, "--json")[1])["state"] == "failed"


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request alike, and records the requests."""

    answer: ClassVar[tuple[int, bytes]]
    asked: ClassVar[list[tuple[str, str | None]]]

    def do_POST(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Log nothing."""


@pytest.fixture
def answering(place: Path) -> Iterator[Callable[[int, bytes], list[tuple[str, str | None]]]]:
    """``asked = answering(200, b"{}")``: a server holds the data directory and gives this answer."""
    handler = type("Handler", (_Answers,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    thread.start()

    def answer(status: int, body: bytes) -> list[tuple[str, str | None]]:
        handler.answer = (status, body)
        return handler.asked

    with DataDirLock(data_dir=place / "data", address=f"http://127.0.0.1:{server.server_port}"):
        yield answer
    server.shutdown()
    thread.join()
    server.server_close()


Answering = Callable[[int, bytes], list[tuple[str, str | None]]]


@pytest.mark.parametrize("what", ["retry", "cancel"])
def test_request_to_the_gateway_carries_its_token(
    command: Command, answering: Answering, monkeypatch: pytest.MonkeyPatch, what: str
):
    monkeypatch.setenv("TORANA_GATEWAY_TOKEN", "a-token-of-more-than-sixteen-characters")
    asked = answering(202, b'{"id": "turn_1", "status": "queued"}')
    assert command("turns", what, "turn_1") == (0, "turn_1 is queued\n", "")
    assert asked == [(f"/v1/turns/turn_1/{what}", "Bearer a-token-of-more-than-sixteen-characters")]


def test_changed_turn_is_printed_as_json(command: Command, answering: Answering):
    answering(202, b'{"id": "turn_1", "status": "queued"}')
    code, out, err = command("turns", "retry", "turn_1", "--json")
    assert (code, json.loads(out), err) == (0, {"id": "turn_1", "status": "queued"}, "")


def test_request_without_a_token_has_no_authorization(command: Command, answering: Answering):
    asked = answering(202, b'{"id": "turn_1", "status": "queued"}')
    command("turns", "retry", "turn_1")
    assert asked == [("/v1/turns/turn_1/retry", None)]


def test_turn_id_is_escaped_in_the_path(command: Command, answering: Answering):
    asked = answering(202, b'{"id": "turn_1", "status": "queued"}')
    command("turns", "cancel", "../x?y#z")
    assert asked == [("/v1/turns/..%2Fx%3Fy%23z/cancel", None)]


def test_refusal_is_printed_in_the_gateways_words(command: Command, answering: Answering):
    answering(409, b'{"detail": "Only a turn that failed can be run again."}')
    assert command("turns", "retry", "t") == (1, "", "Only a turn that failed can be run again.\n")


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>"), (200, b"[]"), (200, b"{}"), (404, b"{}"), (500, b'"no"'), (502, b"")]
)
def test_invalid_gateway_response_is_reported_in_one_line(
    command: Command, answering: Answering, status: int, body: bytes
):
    answering(status, body)
    code, out, err = command("turns", "retry", "t")
    assert (code, out) == (1, "")
    assert "no valid response of a gateway" in err
    assert err.count("\n") == 1


def test_unreachable_gateway_is_reported_in_one_line(command: Command, place: Path):
    with DataDirLock(data_dir=place / "data", address="http://127.0.0.1:9"):
        code, out, err = command("turns", "cancel", "t")
    assert (code, out) == (1, "")
    assert err.startswith("no valid response of a gateway from http://127.0.0.1:9: ")
