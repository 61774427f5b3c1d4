"""``torana chat`` at a prompt on a real terminal."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.integration.cli.terminal import chat_in
from tests.standins.servers import free_port

from torana.store.backup.archive import DATABASE_NAME
from torana.store.engine.lock import read_address
from torana.testing import Answer, Call, ChatRequest, OpenAIStandIn

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

pytestmark = pytest.mark.long

CTRL_C, CTRL_D, ALT_ENTER, UP = "\x03", "\x04", "\x1b\r", "\x1b[A"
TOKEN = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"


def test_chat_at_the_prompt_answers_messages_and_commands(place: Place) -> None:
    with chat_in(place) as screen:
        screen.prompt()
        assert "Alt-Enter" in screen.text
        screen.type("what is 17 % of 2,340\r")
        screen.expect(r"^> what is 17 % of 2,340\n· calculate\n17 % of 2,340 = 397.8\n>\Z")
        screen.type("/new\r")
        screen.expect(r"^A new conversation.\n>\Z")
        screen.type("what did I say last?\r")
        screen.expect(r"^No earlier message in this conversation matches.\n>\Z")
        screen.type("/model\r")
        screen.expect(r"^builtin\n>\Z")
        screen.type("/approve\r")
        screen.expect(r"^No tool call waits for approval.\n>\Z")
        screen.type("/quit\r")
        assert screen.exit_code() == 0


def test_pasted_lines_are_one_message(place: Place) -> None:
    with chat_in(place) as screen:
        screen.prompt()
        screen.paste("sort these lines:\npear\nfig\napple")
        screen.expect(r"^  apple\Z")
        screen.type("\r")
        screen.expect(r"^apple\nfig\npear\n>\Z")


@pytest.mark.parametrize("key", [ALT_ENTER, "\\\r"], ids=["Alt-Enter", "backslash"])
def test_new_line_in_a_message(place: Place, key: str) -> None:
    with chat_in(place) as screen:
        screen.prompt()
        screen.type(f"sort these lines:{key}pear{key}fig\r")
        screen.expect(r"^> sort these lines:\n  pear\n  fig\n· sort_lines\nfig\npear\n>\Z")


def test_history_is_private_and_lasts(place: Place) -> None:
    with chat_in(place) as screen:
        screen.prompt()
        screen.type("1 + 1\r")
        screen.expect(r"^1 \+ 1 = 2\n>\Z")
        screen.type(CTRL_D)
        assert screen.exit_code() == 0
    (history,) = (place.path / ".local/state/torana").iterdir()
    assert history.stat().st_mode & 0o777 == 0o600
    before = history.read_text()
    with chat_in(place, "--no-history") as screen:
        screen.prompt()
        screen.type("2 + 2\r")
        screen.expect(r"^2 \+ 2 = 4\n>\Z")
    assert history.read_text() == before
    with chat_in(place) as screen:
        screen.prompt()
        screen.type(UP)
        screen.expect(r"^> 1 \+ 1\Z")


def test_ctrl_c_cancels_the_running_turn(place: Place) -> None:
    with chat_in(place) as screen:
        screen.prompt()
        screen.type("use dawdle\r")
        place.gate.reached()
        screen.type(CTRL_C)
        screen.expect(r"^Cancelled.\n>\Z")
        place.gate.open()
        screen.type("/status\r")
        screen.expect(r"^Running here: 0. Waiting: 0.\n>\Z")


def test_ctrl_c_clears_the_line_and_twice_ends_the_chat(place: Place) -> None:
    with chat_in(place) as screen:
        screen.prompt()
        screen.type("half a line")
        screen.expect(r"^> half a line\Z")
        screen.type(CTRL_C)
        screen.prompt()
        screen.type(CTRL_C)
        assert screen.exit_code() == 0
        assert "Traceback" not in screen.text


def test_ctrl_d_at_the_prompt_ends_the_chat(place: Place) -> None:
    with chat_in(place) as screen:
        screen.prompt()
        screen.type(CTRL_D)
        assert screen.exit_code() == 0


def test_reminder_appears_at_an_idle_prompt(place: Place) -> None:
    place.serve()
    with chat_in(place) as screen:
        screen.prompt()
        screen.type("remind me tomorrow at 9 to call Ana\r")
        screen.expect(r"^Scheduled: (.|\n)*\n>\Z")
        screen.type("half a line")
        database = place.data_dir / DATABASE_NAME
        with closing(sqlite3.connect(database)) as connection, connection:  # tomorrow has come
            connection.execute("UPDATE schedules SET due_at = created_at, try_at = created_at")
        code, _, err = place.run("schedules", "add", "look", "--at", "in 2 hours")  # which wakes the ticker
        assert (code, err) == (0, "")
        screen.expect(r"^\d\d:\d\d\n\nReminder: call Ana\n> half a line\Z")


def test_approval_of_a_killed_gateway_is_asked_again(place: Place) -> None:
    port, asks = str(free_port()), '[{"tool": "calculate", "permission": "ask"}]'
    gateway = place.start("serve", "--port", port, TORANA_PERMISSIONS=asks)
    assert gateway.stdout is not None
    gateway.stdout.readline()  # its address
    with chat_in(place) as screen:
        screen.prompt()
        screen.type("what is 1 + 1\r")
        screen.expect(r"\? \[y/N\]\Z")
        gateway.kill()
        gateway.wait()
        screen.type("y\r")
        screen.expect(r"torana turns show\sturn_\S*\n>\Z")
        place.start("serve", "--port", port, TORANA_PERMISSIONS=asks)
        screen.expect(r"\? \[y/N\]\Z")
        screen.type("y\r")
        screen.expect(r"^1 \+ 1 = 2\n>\Z")


def test_keys_pressed_before_a_question_do_not_answer_it(place: Place) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def reply(request: ChatRequest) -> Answer:
        if any(message["role"] == "tool" for message in request.messages):
            return "Done."
        asked.set()
        assert may_answer.wait(30)
        return [Call("calculate", {"expression": "6*7"})]

    asks = '[{"tool": "calculate", "permission": "ask"}]'
    with OpenAIStandIn(reply=reply) as server:
        model = {
            "TORANA_MODEL": "openai-chat:x",
            "TORANA_MODEL_BASE_URL": server.url,
            "TORANA_PERMISSIONS": asks,
        }
        with chat_in(place, **model) as screen:
            screen.prompt()
            screen.type("pay\r")
            assert asked.wait(30)
            screen.type("y\r")
            screen.expect(r"^y$")
            may_answer.set()
            screen.expect(r"\? \[y/N\]\Z")
            screen.type("n\r")
            screen.expect(r"\[y/N\] n\n(.|\n)*^>\Z")
            assert "did not succeed" in screen.text


def test_answer_is_wrapped_markdown_without_control_characters(place: Place) -> None:
    def reply(_: ChatRequest) -> Answer:
        words = " ".join(["wrapped"] * 12)
        hidden = "<https://a/%1b]52;c;eA==%1b%5c> &#x202e;"
        return (
            f"**Bold** {words}\n\n- {hidden}\n- one\n- two \x1b]0;evil\x07 \x1b[2J[bank](http://evil.example)"
        )

    with OpenAIStandIn(reply=reply) as server:
        model = {"TORANA_MODEL": "openai-chat:x", "TORANA_MODEL_BASE_URL": server.url}
        with chat_in(place, **model) as screen:
            screen.prompt()
            before = len(screen.output)
            screen.type("hi\r")
            text = screen.expect(r"^ • two (.|\n)*\n>\Z")
    assert "Bold wrapped" in text
    assert all(not line.startswith("rapped") for line in text.splitlines())
    assert "(http://evil.example)" in text
    assert b"\x1b]0;evil" not in screen.output[before:]
    assert b"\x1b]52;" not in screen.output[before:]
    assert "\u202e".encode() not in screen.output[before:]
    assert b"\x1b]8;" not in screen.output[before:]


def test_token_of_a_remote_gateway_is_asked_for_without_echo(place: Place) -> None:
    place.serve(TORANA_GATEWAY_TOKEN=TOKEN)
    address = read_address(place.data_dir)
    assert address is not None
    with chat_in(place, "--url", address) as screen:
        screen.expect(r"^Token:\Z")
        screen.type(f"{TOKEN}\r")
        screen.prompt()
        screen.type("1 + 1\r")
        screen.expect(r"^1 \+ 1 = 2\n>\Z")
        assert TOKEN.encode() not in screen.output


def test_attached_files_go_with_the_next_message(place: Place) -> None:
    (place.path / "my notes.txt").write_text("Call Ana.")

    def reply(request: ChatRequest) -> str:
        return "1 file." if "Call Ana." in str(request.messages[-1]["content"]) else "0 files."

    with OpenAIStandIn(reply=reply) as server:
        model = {"TORANA_MODEL": "openai-chat:x", "TORANA_MODEL_BASE_URL": server.url}
        with chat_in(place, **model) as screen:
            screen.prompt()
            screen.type("/attach nowhere.txt\r")
            screen.expect(r"^nowhere.txt: cannot be read \(No such file or directory\)\n>\Z")
            screen.type("/attach my\\ notes.txt\r")
            screen.expect(r"^With the next message: my notes.txt \(0.0 kB\).\n>\Z")
            screen.type("/attach\r")
            screen.expect(r"^No file is attached.\n>\Z")
            screen.type("/attach 'my notes.txt'\r")
            screen.expect(r"^With the next message: my notes.txt \(0.0 kB\).\n>\Z")
            screen.type("look\r")
            screen.expect(r"^1 file.\n>\Z")
            screen.type("and now?\r")
            screen.expect(r"^0 files.\n>\Z")
