"""Commands behind a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from typing import TYPE_CHECKING

import pyte
from tests.integration.cli.conftest import heed_signals
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.integration.cli.conftest import Place

COLUMNS, LINES = 60, 200
_STEERING = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]|\r")


#: Readings of a terminal that says nothing in about a second.
_SECOND = 10


def _readable(descriptor: int, seconds: float = 0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


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

    def press_ctrl_c(self, text: str) -> None:
        """Press Ctrl-C until a text appears: readline does not see a signal while it prepares to wait."""
        for number, _ in enumerate(self._readings()):
            if text in self.text:
                return
            if number % _SECOND == 0:
                self.type("\x03")
        raise AssertionError

    def exit_code(self) -> int:
        """Read to the end, and return the exit code."""
        for _ in self._readings():
            if self._process.poll() is not None:
                while _readable(self._descriptor) and (left := self._read()):
                    self.text += _STEERING.sub("", left)
                return self._process.returncode
        raise AssertionError

    def _readings(self) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            yield
            if _readable(self._descriptor, 0.1):
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


class Screen:
    """A command on an emulated terminal, as its user sees it."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self._process = process
        self._screen = pyte.Screen(COLUMNS, LINES)
        # The program asks the terminal where the cursor is.
        self._screen.write_process_input = self.type
        self._stream = pyte.ByteStream(self._screen)
        self.output = b""

    def type(self, data: str) -> None:
        """Press keys."""
        os.write(self._descriptor, data.encode())

    def resize(self, lines: int) -> None:
        """Change the height of the terminal."""
        ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, COLUMNS, 0, 0))
        self._screen.resize(lines, COLUMNS)

    def paste(self, text: str) -> None:
        """Paste, as a terminal with bracketed paste does."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    @property
    def text(self) -> str:
        """The lines of the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def expect(self, pattern: str) -> str:
        """Read until the screen matches a regular expression; return the screen."""
        return self.read_until(lambda: re.search(pattern, self.text, re.MULTILINE) is not None)

    def prompt(self) -> None:
        """Read until the empty prompt is the last line."""
        self.expect(r"^>\Z")

    def exit_code(self) -> int:
        """Read to the end, and return the exit code."""
        self.read_until(lambda: self._process.poll() is not None)
        while _readable(self._descriptor) and self._read():
            pass
        return self._process.returncode

    def read_until(self, condition: Callable[[], bool]) -> str:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.text
            if _readable(self._descriptor, 0.1):
                self._read()
        return self.text

    def _read(self) -> bytes:
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:  # the other side is closed
            return b""
        self.output += data
        self._stream.feed(data)
        return data


@contextmanager
def chat_in(place: Place, *arguments: str, **settings: str) -> Generator[Screen]:
    """Run ``torana chat`` on a terminal."""
    with command_process(place, "chat", *arguments, **settings) as (descriptor, process):
        ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        yield Screen(descriptor, process)


@contextmanager
def command_in(place: Place, *arguments: str, **settings: str) -> Generator[Terminal]:
    """Run ``torana`` with these arguments on a terminal."""
    with command_process(place, *arguments, **settings) as (descriptor, process):
        yield Terminal(descriptor, process)


@contextmanager
def command_process(
    place: Place, *arguments: str, **settings: str
) -> Generator[tuple[int, subprocess.Popen[bytes]]]:
    """Run ``torana`` on a terminal; yield the other side of the terminal, and the process."""
    command = [sys.executable, "-m", "torana", *arguments]
    with process_on_terminal(command, cwd=place.path, environ=place.environ(**settings)) as found:
        yield found


@contextmanager
def process_on_terminal(
    command: Sequence[str], *, cwd: Path, environ: Mapping[str, str]
) -> Generator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a command on a terminal; yield the other side of the terminal, and the process."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**environ, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_on_its_terminal,
    )
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)
