"""The commands as processes, beside a gateway that runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.standins.gate import Gate

import torana

#: The code that is tested, wherever another is installed.
SOURCE = Path(torana.__file__).parents[1]


def heed_signals() -> None:
    """For a child that is about to begin: nothing is ignored, though who runs the tests may ignore it.

    In the background a shell's commands ignore Ctrl-C, and under nohup the end of the terminal.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Place:
    """A directory in which commands run, with the data directory to be made in it."""

    def __init__(self, path: Path, running: ExitStack) -> None:
        self.path = path
        self.data_dir = path / "data"
        self._running = running
        #: Where the slow tool waits.
        self.gate = Gate()
        running.callback(self.gate.open)
        (path / "dawdling.py").write_text(self.gate.tool)

    def environ(self, **settings: str) -> dict[str, str]:
        """The environment of a command: the user's own settings are not in it."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "COVERAGE"))}
        own = {
            "HOME": str(self.path),
            "TORANA_DATA_DIR": str(self.data_dir),
            "TORANA_TOOLS": "dawdling:dawdle",
            # The code that is tested, not another.
            "PYTHONPATH": os.pathsep.join([str(self.path), str(Path(torana.__file__).parents[1])]),
            "TORANA_TIMEZONE": "UTC",
        }
        return kept | own | settings

    def free_port(self) -> int:
        """A port that nobody listens on."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return listener.getsockname()[1]

    def run(self, *arguments: str, given: str | bytes = "", **settings: str) -> tuple[int, str, str]:
        """Run a command to its end: exit code, standard output, standard error."""
        done = subprocess.run(
            [sys.executable, "-m", "torana", *arguments],
            cwd=self.path,
            env=self.environ(**settings),
            input=given.encode() if isinstance(given, str) else given,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Start a command; it is killed at the end of the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "torana", *arguments],
            cwd=self.path,
            env=self.environ(**settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.callback(_end, process)
        return process

    def serve(self, **settings: str) -> subprocess.Popen[str]:
        """Start a gateway on a free port; it takes messages when this returns."""
        gateway = self.start("serve", "--port", str(self.free_port()), **settings)
        assert gateway.stdout is not None
        gateway.stdout.readline()  # it says where it listens, or nothing
        return gateway


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place of the test's own."""
    with ExitStack() as running:
        yield Place(tmp_path, running)
