"""``torana chat`` at a prompt on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.integration.cli.conftest import heed_signals
from tests.waiting import eventually

from torana.store.backup.archive import DATABASE_NAME

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.integration.cli.conftest import Place

PATIENCE = 30.0
CTRL_C, CTRL_D = "\x03", "\x04"
_STEERING = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]|\r")


class Terminal:
    """A command behind a pseudo-terminal, with input and output."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self._process = process
        self.text = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._descriptor, text.encode())

    def expect(self, *texts: str) -> str:
        """Read until one of the texts appears after the previously expected text; return all up to its end."""
        for _ in self._readings():
            for text in texts:
                if text in self.text:
                    before, _, self.text = self.text.partition(text)
                    return before + text
        raise AssertionError

    def exit_code(self) -> int:
        """Read to the end, and return the exit code."""
        for _ in self._readings():
            if self._process.poll() is not None:
                return self._process.returncode
        raise AssertionError

    def exit_code_after(self, key: str) -> int:
        """Press a key, and press Enter each second until the command has ended.

        A Ctrl-C between the prompt and the wait for a key is not noticed before the line ends or another signal
        comes (``readline_until_enter_or_signal`` of its readline.c). A second Ctrl-C could interrupt the
        shutdown itself.
        """
        pressed_at = 0.0
        for _ in self._readings():
            if self._process.poll() is not None:
                return self._process.returncode
            if time.monotonic() > pressed_at + 1:
                self.type(key)
                key, pressed_at = "\n", time.monotonic()
        raise AssertionError

    def _readings(self) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            yield
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.text += _STEERING.sub("", self._read())
        raise AssertionError(f"on the terminal stands {self.text!r}")

    def _read(self) -> str:
        try:
            return os.read(self._descriptor, 65_536).decode(errors="replace")
        except OSError:  # the other side is closed
            return ""


def _on_its_terminal() -> None:
    """Let Ctrl-C reach the command: it has that terminal, and ignores no key."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    heed_signals()


def chat_in(place: Place, **settings: str) -> AbstractContextManager[Terminal]:
    """Run ``torana chat`` on a terminal."""
    return command_in(place, "chat", **settings)


@contextmanager
def command_in(place: Place, *arguments: str, **settings: str) -> Generator[Terminal]:
    """Run ``torana`` with these arguments on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "torana", *arguments],
        cwd=place.path,
        env=place.environ(TERM="xterm", **settings),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_on_its_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_chat_at_the_prompt_answers_messages_and_commands(place: Place) -> None:
    with chat_in(place) as terminal:
        terminal.expect(
            "/new starts a new conversation, /quit or Ctrl-D ends the chat, "
            "Ctrl-C stops waiting for an answer.\n> "
        )
        terminal.type("what is 17 % of 2,340\n")
        terminal.expect("17 % of 2,340\n17 % of 2,340 = 397.8\n> ")  # and nothing else in between
        terminal.type("\n/new\n")
        terminal.expect("A new conversation.\n> ")
        terminal.type("what did I say last?\n")
        terminal.expect("No earlier message in this conversation matches.\n> ")
        terminal.type("/quit\n")
        assert terminal.exit_code() == 0


def test_ctrl_c_stops_waiting_and_the_chat_continues(place: Place) -> None:
    with chat_in(place) as terminal:
        terminal.expect("> ")
        terminal.type("use dawdle\n")
        place.gate.reached()
        terminal.type(CTRL_C)
        terminal.expect("Stopped waiting. The answer will appear in the conversation.\n> ")
        place.gate.open()
        terminal.type("what did I say first?\n")
        terminal.expect(
            "You said: use dawdle\ndawdled to the end\n> "
        )  # and the answer that the user stopped waiting for
        terminal.type("\n")
        terminal.expect("\n> ")  # only once
        terminal.type("/exit\n")
        assert terminal.exit_code() == 0


def test_reminder_is_printed_before_the_next_prompt(place: Place) -> None:
    place.serve()
    with chat_in(place) as terminal:
        terminal.expect("> ")
        terminal.type("remind me tomorrow at 9 to call Ana\n")
        terminal.expect("Scheduled: ")
        terminal.expect("\n> ")
        database = place.data_dir / DATABASE_NAME
        with closing(sqlite3.connect(database)) as connection, connection:  # tomorrow has come
            connection.execute("UPDATE schedules SET due_at = created_at, try_at = created_at")
        code, _, err = place.run("schedules", "add", "look", "--at", "in 2 hours")  # which wakes the ticker
        assert (code, err) == (0, "")

        def heard() -> bool:
            terminal.type("\n")
            return "\nReminder: call Ana\n" in terminal.expect("\n> ")

        eventually(heard)
        terminal.type("/quit\n")
        assert terminal.exit_code() == 0


def test_approval_of_a_killed_gateway_is_asked_again(place: Place) -> None:
    port, asks = str(place.free_port()), '[{"tool": "calculate", "permission": "ask"}]'
    gateway = place.start("serve", "--port", port, TORANA_PERMISSIONS=asks)
    assert gateway.stdout is not None
    gateway.stdout.readline()  # its address
    with chat_in(place) as terminal:
        terminal.expect("> ")
        terminal.type("what is 1 + 1\n")
        terminal.expect("? [y/N] ")
        gateway.kill()
        gateway.wait()
        terminal.type("y\n")
        terminal.expect("torana turns show turn_")
        terminal.expect("\n> ")
        place.start("serve", "--port", port, TORANA_PERMISSIONS=asks)

        def asked() -> bool:
            terminal.type("\n")
            return terminal.expect("\n> ", "? [y/N] ").endswith("? [y/N] ")

        eventually(asked)
        terminal.type("y\n")
        terminal.expect("1 + 1 = 2\n> ")
        terminal.type("/quit\n")
        assert terminal.exit_code() == 0


@pytest.mark.parametrize("key", [CTRL_D, CTRL_C], ids=["Ctrl-D", "Ctrl-C"])
def test_ctrl_c_and_ctrl_d_at_the_prompt_end_the_chat(place: Place, key: str) -> None:
    with chat_in(place) as terminal:
        terminal.expect("> ")
        assert terminal.exit_code_after(key) == 0
        assert "Traceback" not in terminal.text
