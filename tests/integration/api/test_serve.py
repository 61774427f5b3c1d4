"""``torana serve`` as a process: its output, its signals, and the errors that end it with one line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from select import select
from typing import Any

import httpx2
import psycopg
import pytest
from tests.parts import open_files_of
from tests.standins.gate import Gate
from tests.standins.servers import free_port
from tests.waiting import PATIENCE, eventually

import torana
from torana.store.engine.lock import DataDirLock
from torana.testing import ChatRequest, OpenAIStandIn

#: The tested code, also if another version is installed.
SOURCE = Path(torana.__file__).parents[1]

PLAIN_TOOL = """
import socket
from contextlib import suppress
from torana.tools import tool

@tool(idempotent=True)
def dawdle() -> str:
    'Take long.'
    with suppress(OSError), socket.create_connection(("127.0.0.1", PORT)) as gate:
        gate.recv(1)
    return "dawdled to the end"
"""


class Process:
    """A process of ``torana serve``."""

    def __init__(self, directory: Path, environ: dict[str, str], *, port: int, files: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        limited = ["sh", "-c", f'ulimit {files} && exec "$@"', "sh"] if files else []
        serve = [
            sys.executable,
            "-m",
            "torana",
            "serve",
            "--port",
            str(self.port),
            "--data-dir",
            str(directory),
        ]
        self._process = subprocess.Popen(
            [*limited, *serve],
            env=clean_environ() | {"TORANA_RATE_GLOBAL": "0"} | environ,
            cwd=directory.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert any(line.startswith("Torana ") for line in self._process.stdout), self.ended()

    @property
    def handles(self) -> int:
        """Return the number of open files."""
        return open_files_of(self._process.pid)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        """Return its exit code, and its remaining output on standard output and standard error."""
        output, errors = self._process.communicate()
        return self._process.returncode, output, errors

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.communicate()

    def wait_until_draining(self) -> httpx2.Response:
        with httpx2.Client(base_url=self.url, timeout=PATIENCE) as client:
            while (answer := client.get("/health")).json()["status"] != "draining":
                pass
        return answer

    def wait_for_turn(self, place: str) -> dict[str, Any]:
        """Return the turn at this path, when it has ended."""
        with httpx2.Client(base_url=self.url, timeout=PATIENCE) as client:
            while (turn := client.get(place).json())["status"] == "running":
                pass
        return turn


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TORANA_")}


Serve = Callable[..., Process]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """``serve(port=…, TORANA_MODEL="…")`` starts a process, which ends with the test. ``files`` are options of
    ``ulimit``.
    """
    with ExitStack() as stack:

        def start(*, port: int | None = None, files: str = "", **environ: str) -> Process:
            process = Process(tmp_path / "data", environ, port=port or free_port(), files=files)
            stack.callback(process.kill)
            return process

        yield start


class Slow:
    """A provider that responds only when the gate is open."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self._server = OpenAIStandIn(reply=self._reply)

    def _reply(self, request: ChatRequest) -> str:
        self.asked.set()
        self.gate.wait()
        return "at last"

    def environ(self) -> dict[str, str]:
        return {
            "TORANA_MODEL": "openai-chat:stand-in",
            "TORANA_MODEL_BASE_URL": self._server.url,
            "TORANA_MODEL_API_KEY": "none",
        }

    @contextmanager
    def open(self) -> Generator[None]:
        with self._server:
            try:
                yield
            finally:
                self.gate.set()


@pytest.fixture
def slow() -> Iterator[Slow]:
    provider = Slow()
    with provider.open():
        yield provider


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def send(process: Process, content: str = "hi") -> httpx2.Response:
    return httpx2.post(f"{process.url}/message", json={"content": content}, timeout=None)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_running_turn_ends_before_gateway_stops(
    serve: Serve, slow: Slow, background: ThreadPoolExecutor, number: int
):
    process = serve(**slow.environ())
    process.wait_until_ready()
    waiting: Future[httpx2.Response] = background.submit(send, process)
    slow.asked.wait()
    process.signal(number)

    health = process.wait_until_draining()
    assert health.status_code == 503
    refused = send(process, "too late")
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) > 0

    slow.gate.set()
    answer = waiting.result()
    assert (answer.status_code, answer.json()["reply"]) == (200, "at last")
    code, _, errors = process.ended()
    assert (code, "Traceback" in errors) == (0, False)


@pytest.mark.long
def test_second_signal_stops_at_once_and_next_start_resumes_turn(
    serve: Serve, slow: Slow, background: ThreadPoolExecutor
):
    process = serve(**slow.environ())
    process.wait_until_ready()
    waiting: Future[httpx2.Response] = background.submit(send, process)
    slow.asked.wait()
    process.signal(signal.SIGTERM)
    process.wait_until_draining()
    process.signal(signal.SIGTERM)
    answer = waiting.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    code, _, errors = process.ended()
    assert (code, "Traceback" in errors) == (0, False)

    slow.gate.set()
    again = serve(**slow.environ())
    again.wait_until_ready()
    turn = again.wait_for_turn(answer.json()["instance"])
    assert (turn["status"], turn["reply"]) == ("completed", "at last")


def test_gateway_accepts_messages_while_a_load_balancer_takes_it_out(serve: Serve):
    process = serve(TORANA_DRAIN_DELAY="3600")
    process.wait_until_ready()
    process.signal(signal.SIGTERM)

    assert process.wait_until_draining().status_code == 503
    assert send(process, "what is 6 * 7").status_code == 200
    process.signal(signal.SIGTERM)
    code, _, errors = process.ended()
    assert (code, "Traceback" in errors) == (0, False)


def test_gateway_stops_after_the_delay(serve: Serve):
    process = serve(TORANA_DRAIN_DELAY="1", TORANA_LOG_FORMAT="json")
    process.wait_until_ready()
    process.signal(signal.SIGTERM)
    code, _, errors = process.ended()

    logged = [json.loads(line) for line in errors.splitlines()]
    stop = [line for line in logged if line["event"] in ("gateway_draining", "gateway_stopping")]
    assert code == 0
    assert [line["event"] for line in stop] == ["gateway_draining", "gateway_stopping"]
    assert stop[0]["seconds"] == 1


@pytest.mark.long
def test_replica_whose_work_was_taken_over_answers_and_ends(
    serve: Serve, slow: Slow, background: ThreadPoolExecutor, postgres_url: str
):
    process = serve(**slow.environ(), TORANA_DATABASE_URL=postgres_url, TORANA_REPLICAS="true")
    process.wait_until_ready()
    waiting: Future[httpx2.Response] = background.submit(send, process)
    slow.asked.wait()
    ((turn,),) = execute(postgres_url, "SELECT id FROM turns")
    with httpx2.stream("GET", f"{process.url}/v1/turns/{turn}/events", timeout=None) as events:
        lines = events.iter_lines()
        assert next(lines) == "event: turn.accepted"
        assert re.fullmatch(r"id: 1-1\.[0-9a-f]{6}", next(lines))
        execute(postgres_url, "DELETE FROM replicas RETURNING id")
        assert "event: turn.completed" not in list(lines)

    answer = waiting.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert answer.json()["instance"] == f"v1/turns/{turn}"
    code, _, errors = process.ended()
    assert code == 1
    assert "another replica has taken over the work of this replica" in errors
    assert "Traceback" not in errors
    assert "graceful shutdown exceeded" not in errors


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


@pytest.mark.long
def test_second_signal_does_not_wait_for_synchronous_tool(
    serve: Serve, background: ThreadPoolExecutor, tmp_path: Path
):
    gate = Gate()
    (tmp_path / "plain.py").write_text(PLAIN_TOOL.replace("PORT", str(gate.port)))
    settings = {"TORANA_TOOLS": "plain:dawdle", "PYTHONPATH": f"{tmp_path}:{SOURCE}"}
    process = serve(**settings)
    process.wait_until_ready()
    waiting = background.submit(send, process, "use dawdle")
    gate.reached()
    process.signal(signal.SIGTERM)
    process.wait_until_draining()
    process.signal(signal.SIGTERM)
    answer = waiting.result()  # although the gate is closed
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    code, _, errors = process.ended()
    gate.open()
    assert (code, "Traceback" in errors) == (0, False)

    again = serve(**settings)
    again.wait_until_ready()
    turn = again.wait_for_turn(answer.json()["instance"])
    assert (turn["status"], "dawdled to the end" in turn["reply"]) == ("completed", True)


def test_signal_during_start_stops_gateway_and_answers_held_requests(serve: Serve, tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow_tools.py").write_text(f"def tool() -> str: ...\nopen({str(gate)!r}).read()")
    process = serve(TORANA_TOOLS="slow_tools:tool", PYTHONPATH=str(tmp_path))
    # Opening the FIFO returns when the other side reads it: now the build is in progress.
    with gate.open("w"), closing(HTTPConnection("127.0.0.1", process.port)) as held:
        held.request("GET", "/skills")
        # The gateway accepts connections and reads from them in order, so it holds the request now.
        assert httpx2.get(f"{process.url}/health", timeout=PATIENCE).json()["status"] == "starting"
        process.signal(signal.SIGTERM)
        answer = held.getresponse()
        assert (answer.status, json.load(answer)["code"]) == (503, "starting")
    code, _, errors = process.ended()
    assert (code, "Traceback" in errors) == (0, False)


# --- connections


@contextmanager
def silent(process: Process, connections: int) -> Generator[list[socket.socket]]:
    """Open connections without sending data."""
    with ExitStack() as stack:
        address = ("127.0.0.1", process.port)
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(connections)]


def test_idle_connections_leave_file_descriptors_free(serve: Serve):
    process = serve(files="-n 256")
    process.wait_until_ready()
    with closing(HTTPConnection("127.0.0.1", process.port)) as connection:
        connection.putrequest("POST", "/message")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "17")
        connection.endheaders()
        with silent(process, 253) as opened:
            # Of 254 connections, 128 are allowed.
            eventually(lambda: len(select(opened, [], [], 0)[0]) >= 126)
            assert [one.recv(1) for one in select(opened, [], [], 0)[0]] == [b""] * 126
            assert process.handles < 256 - 64
            connection.send(b'{"content": "hi"}')
            assert connection.getresponse().status == 200


def test_file_descriptor_limit_is_raised_to_maximum(serve: Serve):
    process = serve(files="-S -n 256")
    process.wait_until_ready()
    with silent(process, 300):
        assert httpx2.get(f"{process.url}/health", timeout=PATIENCE).status_code == 200
        assert process.handles > 300


# --- errors that end it with one line


def fails_with(process: Process, code: int) -> str:
    """Return the one line with which the process ends. Lines of the log and warnings are ignored."""
    returned, output, errors = process.ended()
    lines = [line for line in errors.splitlines() if not line.startswith(("{", "warning: "))]
    assert (returned, output, len(lines)) == (code, "", 1), errors
    return lines[0]


def test_port_in_use_prints_one_line(serve: Serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = fails_with(serve(port=taken.getsockname()[1]), 1)
    assert "in use" in line
    assert "--port" in line


def test_data_directory_in_use_prints_one_line(serve: Serve, tmp_path: Path):
    with DataDirLock(data_dir=tmp_path / "data", address="http://127.0.0.1:1"):
        assert "already running at http://127.0.0.1:1" in fails_with(serve(), 1)


def test_failed_build_prints_one_line_with_its_location(serve: Serve, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('tools = "no_such_module:tool"')
    line = fails_with(serve(TORANA_CONFIG=str(file)), 2)
    assert line.startswith(f"{file.name}:1: tools: no_such_module:tool: No module named")


def test_unwritable_log_prints_one_line(serve: Serve, tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "logs").write_text("a file")
    assert str(tmp_path / "data" / "logs") in fails_with(serve(), 1)
