"""Start the measured programs as their users start them."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

_PATIENCE = 60.0

#: An environment with the runtime dependencies only: those of the tests take memory and slow the start down.
PYTHON = Path(__file__).parents[1] / ".venv-bench" / "bin" / "python"

_SERVE = [str(PYTHON.with_name("torana")), "serve"]


class Server:
    """A running HTTP server process."""

    def __init__(self, *, url: str, process: psutil.Process) -> None:
        self.url = url
        self._process = process

    @property
    def memory(self) -> float:
        """Return the resident memory in MB."""
        return self._process.memory_info().rss / 1e6

    @property
    def handles(self) -> int:
        """Return the number of open file descriptors.

        The gateway hides their list from its own user; since Linux 6.2 its size is the number.
        """
        return Path(f"/proc/{self._process.pid}/fd").stat().st_size or self._process.num_fds()

    @property
    def cpu(self) -> float:
        """Return the seconds of processor time so far."""
        times = self._process.cpu_times()
        return times.user + times.system


@contextmanager
def instant_model(python: str | Path = PYTHON) -> Generator[str]:
    """Run the instant model, and yield its base URL."""
    process = subprocess.Popen(
        [python, "-m", "bench.model"], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        _end(process)


@contextmanager
def torana(home: Path, **settings: str) -> Generator[Server]:
    """Run a gateway without rate limits, and yield it when it is ready.

    ``settings`` are names of ``TORANA_`` variables without the prefix, and their values.
    """
    port = free_port()
    environ = {
        "TORANA_RATE_PER_USER": "0",
        "TORANA_RATE_GLOBAL": "0",
        "TORANA_DATA_DIR": str(home),
        "TORANA_PORT": str(port),
    } | {f"TORANA_{name.upper()}": value for name, value in settings.items()}
    with running(_SERVE, environ, port, home) as server:
        wait_for(f"{server.url}/health", '"status":"ok"')
        yield server


def wait_for(url: str, text: str = "") -> float:
    """Repeat a request until the response contains a text, and return the elapsed seconds."""
    began = time.monotonic()
    while time.monotonic() < began + _PATIENCE:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if text in answer.read().decode():
                    return time.monotonic() - began
        except OSError:
            time.sleep(0.002)
    raise TimeoutError(f"{url} did not answer within {_PATIENCE:g} s")


def ask(url: str, body: Mapping[str, Any]) -> None:
    """Send a POST request, and wait for the response."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
        answer.read()


@contextmanager
def started(home: Path, **settings: str) -> Generator[tuple[str, float]]:
    """Start a gateway, and yield its URL and the time of its start without waiting for it."""
    port = free_port()
    environ = {"TORANA_DATA_DIR": str(home), "TORANA_PORT": str(port)}
    environ |= {f"TORANA_{name.upper()}": value for name, value in settings.items()}
    began = time.monotonic()
    with running(_SERVE, environ, port, home) as server:
        yield server.url, began


def command_cpu(home: Path, *arguments: str) -> float:
    """Return the seconds of processor time of a ``torana`` command on a data directory."""
    environ = {**_without_settings(), "TORANA_DATA_DIR": str(home)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([_SERVE[0], *arguments], env=environ, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def installed_size() -> float:
    """Return the MiB on disk of the gateway's environment, without byte code and installers."""
    kept = (path for path in PYTHON.parents[1].rglob("*") if path.is_file() and not path.is_symlink())
    tools = {"__pycache__", "pip", "setuptools", "pkg_resources", "_distutils_hack"}
    return sum(path.stat().st_blocks * 512 for path in kept if not tools & set(path.parts)) / 2**20


def _without_settings() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TORANA_") and name != "PYTHONDONTWRITEBYTECODE"
    }


@contextmanager
def running(command: list[str], environ: Mapping[str, str], port: int, home: Path) -> Generator[Server]:
    """Run a server in a folder, which also gets its log, and yield it at once."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**_without_settings(), **environ}, cwd=home, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield Server(url=f"http://127.0.0.1:{port}", process=psutil.Process(process.pid))
    finally:
        _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a TCP port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
