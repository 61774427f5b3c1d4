"""A real Redis server on a free port of this machine."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.parts import require

#: Tries of a second's fiftieth in which a started server must respond.
_TRIES = 500


class RedisProcess:
    """A server without a file, which a test can kill, freeze and start again on the same port."""

    def __init__(self, *options: str, password: str | None = None) -> None:
        self._program = require("redis-server", "redis-server")
        self._options = options
        self._password = password
        self._directory = Path(tempfile.mkdtemp(prefix="torana-redis-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it responds."""
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self._options]
        self._process = subprocess.Popen(command, cwd=self._directory, stdout=subprocess.DEVNULL)
        retry = Retry(ConstantBackoff(0.02), _TRIES)
        with redis.Redis(port=self.port, password=self._password, retry=retry) as client:
            cast("Any", client).ping()

    def kill(self) -> None:
        """End the server at once, with all data."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def execute(self, *command: str | int) -> Any:
        """Execute a command, and return its result with texts as bytes."""
        with redis.Redis(port=self.port, password=self._password) as client:
            return cast("Any", client).execute_command(*command)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._directory)
