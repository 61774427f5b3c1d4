"""Commands as separate processes, beside a running gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.standins.gate import Gate
from tests.standins.servers import free_port

import torana

#: The tested code, wherever another version is installed.
SOURCE = Path(torana.__file__).parents[1]


def heed_signals() -> None:
    """Restore default signals in a child process.

    A shell's background commands ignore Ctrl-C, and commands under nohup ignore the end of the terminal.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Place:
    """A directory in which commands run, with a future data directory."""

    def __init__(self, path: Path, running: ExitStack) -> None:
        self.path = path
        self.data_dir = path / "data"
        self._running = running
        #: The gate of the slow tool.
        self.gate = Gate()
        running.callback(self.gate.open)
        (path / "dawdling.py").write_text(self.gate.tool)

    def environ(self, **settings: str) -> dict[str, str]:
        """Return the environment of a command, without the user's own settings."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "COVERAGE"))}
        own = {
            "HOME": str(self.path),
            "TORANA_DATA_DIR": str(self.data_dir),
            "TORANA_TOOLS": "dawdling:dawdle",
            # The tested code, not an installed version.
            "PYTHONPATH": os.pathsep.join([str(self.path), str(Path(torana.__file__).parents[1])]),
            "TORANA_TIMEZONE": "UTC",
        }
        return kept | own | settings

    def run(self, *arguments: str, given: str | bytes = "", **settings: str) -> tuple[int, str, str]:
        """Run a command to its end, and return exit code, standard output and standard error."""
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
        """Start a gateway on a free port, and wait until it accepts messages."""
        gateway = self.start("serve", "--port", str(free_port()), **settings)
        assert gateway.stdout is not None
        gateway.stdout.readline()  # its address, or an empty line
        return gateway


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place for the test."""
    with ExitStack() as running:
        yield Place(tmp_path, running)
