"""The gateway in a separate process, which a test kills and starts."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.health import accepts_messages
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]

#: Tools of an operator. A tool that must not run twice writes a line; two others wait for files of the test.
TOOLS = '''
import os
import time
from pathlib import Path

from torana.tools import tool

HOME = Path(__file__).parent


def _append(file, text):
    with (HOME / file).open("a") as lines:
        lines.write(text + "\\n")


def _hold(place):
    """At the place that the test chose, report it and wait for a file or for the end of the process."""
    if (HOME / f"hold-{place}").exists():
        (HOME / f"held-{place}").touch()
        while (HOME / f"hold-{place}").exists():
            time.sleep(0.01)


@tool(idempotent=False)
def note(text: str) -> str:
    """Write a line down."""
    _hold("before")
    _append("notes", text)
    _hold("after")
    return f"noted {text}"


@tool(idempotent=True)
def peek(text: str) -> str:
    """Look at a line."""
    _append("peeks", text)
    _hold("peek")
    return f"seen {text}"


@tool(idempotent=True)
def linger(text: str, seconds: float) -> str:
    """Take a while. The result differs from call to call."""
    mark = HOME / f"lingers-{os.getpid()}-{text}"
    mark.touch()
    time.sleep(seconds)
    mark.unlink(missing_ok=True)
    return f"lingered {text} until {time.time_ns()}"


@tool(idempotent=True)
def poison(text: str) -> str:
    """Kill the process."""
    _append("poisoned", text)
    os.kill(os.getpid(), 9)
'''


class Program:
    """``torana serve`` with the builtin model and the tools above, in a home directory."""

    def __init__(self, *, command: Path, home: Path, settings: dict[str, str]) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            self.port: int = listener.getsockname()[1]
        self.home = home
        #: The number of starts.
        self.starts = 0
        self.database = home / "data" / "torana.db"
        self.url = f"http://127.0.0.1:{self.port}/"
        self._command = [str(command), "serve", "--port", str(self.port)]
        self._environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": str(home),
            "TORANA_DATA_DIR": str(home / "data"),
            "TORANA_TIMEZONE": "UTC",
            "TORANA_RATE_PER_USER": "0",
            "TORANA_RATE_GLOBAL": "0",
            "TORANA_TOOLS": "chaos_tools:note,chaos_tools:peek,chaos_tools:linger,chaos_tools:poison",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        (home / "chaos_tools.py").write_text(TOOLS)

    def start(self) -> None:
        """Start the process without waiting."""
        self.starts += 1
        with (self.home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self.home, env=self._environ, stdout=output, stderr=output
            )

    @property
    def pid(self) -> int | None:
        """Return the id of the process, if it was started."""
        return self._process and self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def wait_until_up(self) -> None:
        """Wait until the gateway accepts messages. Fail if the process ended by itself."""
        eventually(self._is_up)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() in (None, -signal.SIGKILL), self.end_of_output()
        return accepts_messages(f"{self.url}health")

    def kill(self) -> None:
        """Kill the process, as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end_of_output(self) -> str:
        """Return the end of what the process has written."""
        output = self.home / "output"
        return output.read_text()[-2000:] if output.exists() else ""

    def lines(self, file: str) -> list[str]:
        """Return the lines that a tool wrote."""
        path = self.home / file
        return path.read_text().splitlines() if path.exists() else []

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Return rows of the database, read from outside."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement)]
