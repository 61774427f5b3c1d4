"""The gateway on a real socket: its start, requests that uvicorn refuses, and unfinished bodies."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.waiting import PATIENCE

from torana import http11
from torana.api.problems import body_of
from torana.app import App, build
from torana.cli.gateway import Gateway, listen
from torana.config import Loaded, load
from torana.errors import BadRequest, DataDirUnusable, GatewayError, OperatorError, Starting, StoreUnavailable
from torana.testing import ScriptedModel

Serve = Callable[..., str]


class Door:
    """A build that waits until a test continues it."""

    def __init__(self, error: GatewayError | None = None) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.app: App | None = None
        self._error = error

    def __call__(self, loaded: Loaded, *, started: float) -> App:
        self.reached.set()
        self.opened.wait()
        if self._error:
            raise self._error
        self.app = build(loaded, started=started, model=ScriptedModel(*["yes"] * 1000))
        return self.app


class Running:
    """A gateway in a thread."""

    def __init__(self, loaded: Loaded, door: Door, hold: float) -> None:
        self.error: BaseException | None = None
        self.ready = threading.Event()
        self._gateway = Gateway(loaded=loaded, on_ready=self.ready.set, build=door, hold=hold)
        self._listener = listen("127.0.0.1", 0)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._gateway.run(self._listener)
        except OperatorError as error:
            self.error = error

    def stop(self) -> None:
        self._gateway.stop()
        self.thread.join()


@contextmanager
def running(
    directory: Path, door: Door | None = None, *, hold: float = 60, **settings: Any
) -> Generator[Running]:
    environ = {"TORANA_DATA_DIR": str(directory), "TORANA_RATE_GLOBAL": "0"}
    environ |= {f"TORANA_{name.upper()}": str(value) for name, value in settings.items()}
    waiting = door or Door()
    gateway = Running(load(flags={}, environ=environ, cwd=directory, user_dir=directory), waiting, hold)
    try:
        if door is None:
            waiting.opened.set()
            gateway.ready.wait()
        yield gateway
    finally:
        waiting.opened.set()
        gateway.stop()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway for all tests that only send requests."""
    with running(tmp_path_factory.mktemp("data")) as gateway:
        yield gateway


def exchange(gateway: Running, raw: bytes) -> bytes:
    """Send these bytes, and return all bytes of the response until the connection is closed."""
    received = b""
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(raw)
        # A server that closes before it has read all bytes resets the connection after its response.
        with suppress(ConnectionResetError):
            while piece := connection.recv(65_536):
                received += piece
    return received


def parsed(answer: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return status, headers and JSON of one response that ends with the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


# --- starting


def test_health_answers_while_gateway_loads(tmp_path: Path):
    door = Door()
    with running(tmp_path, door) as gateway:
        door.reached.wait()
        for path in ("/health", "/api/health"):
            answer = httpx2.get(gateway.url + path, timeout=PATIENCE)
            body = answer.json()
            assert (answer.status_code, body["status"]) == (200, "starting")
            assert list(body) == ["status", "version", "uptime", "memory", "skills", "connectors"]
            assert body["skills"] == {"core": 0, "user": 0}
        assert httpx2.head(gateway.url + "/health").status_code == 200
        door.opened.set()
        gateway.ready.wait()
        assert httpx2.get(gateway.url + "/health", timeout=PATIENCE).json()["status"] == "ok"


def test_replica_that_loads_gets_no_requests_from_a_load_balancer(tmp_path: Path, postgres_url: str):
    door = Door()
    with running(tmp_path, door, replicas="true", database_url=postgres_url) as gateway:
        door.reached.wait()
        answer = httpx2.get(gateway.url + "/health", timeout=PATIENCE)
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
        door.opened.set()
        gateway.ready.wait()
        assert httpx2.get(gateway.url + "/health", timeout=PATIENCE).status_code == 200


def test_other_requests_wait_until_gateway_has_loaded(tmp_path: Path):
    door = Door()
    with running(tmp_path, door) as gateway, ExitStack() as stack:
        held: list[http.client.HTTPConnection] = []
        for method, path in [("POST", "/message"), ("GET", "/skills"), ("POST", "/health")]:
            connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
            stack.callback(connection.close)
            connection.request(method, path, b'{"content": "hi"}', {"Content-Type": "application/json"})
            held.append(connection)
        door.reached.wait()
        assert httpx2.get(gateway.url + "/health", timeout=PATIENCE).json()["status"] == "starting"
        door.opened.set()
        assert [connection.getresponse().status for connection in held] == [200, 200, 405]


def test_request_held_too_long_is_503_with_retry_after(tmp_path: Path):
    with running(tmp_path, Door(), hold=0) as gateway:
        answer = httpx2.post(gateway.url + "/message", json={"content": "hi"}, timeout=PATIENCE)
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    problem = answer.json()
    assert problem == body_of(Starting(), request_id=problem["requestId"])


def test_failed_build_ends_gateway_and_answers_held_requests(tmp_path: Path):
    door = Door(DataDirUnusable("the disk is full"))
    with running(tmp_path, door) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
        connection.request("GET", "/skills")
        door.reached.wait()
        door.opened.set()
        assert connection.getresponse().status == 503
        connection.close()
        gateway.thread.join()
        assert isinstance(gateway.error, DataDirUnusable)


def test_failure_of_the_database_during_the_start_is_one_line(tmp_path: Path):
    failure = StoreUnavailable()
    failure.__cause__ = OSError("terminating connection\ndue to administrator command")
    door = Door(failure)
    with running(tmp_path, door) as gateway:
        door.opened.set()
        gateway.thread.join()

    assert str(gateway.error) == (
        "the database cannot be used: it failed during the start (terminating connection due to administrator "
        "command)"
    )


def test_gateway_stopped_while_loading_closes_loaded_parts(tmp_path: Path):
    door = Door()
    with running(tmp_path, door) as gateway:
        door.reached.wait()
    assert (gateway.error, gateway.thread.is_alive()) == (None, False)
    assert door.app is not None
    with pytest.raises(StoreUnavailable):
        asyncio.run(door.app.database.run(lambda _: None))


def test_address_in_use_error_is_one_line():
    with listen("127.0.0.1", 0) as first, pytest.raises(OperatorError) as caught:
        listen("127.0.0.1", first.getsockname()[1])
    assert "in use" in caught.value.detail
    assert "--port" in caught.value.detail
    assert "\n" not in caught.value.detail


def test_gateway_listens_on_ipv6():
    with listen("::1", 0) as listener:
        assert listener.family is socket.AF_INET6


# --- invalid requests


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET\r\n\r\n",
        b"F(O /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /h\xc3\xa9alth HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA\0B: c\r\n\r\n",
        b"POST /message HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /message HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n",
        b"POST /message HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /message HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /message HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /nope?\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"x" * 70_000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1234567890\r\n" * 7_000,
    ],
    ids=lambda raw: raw[:24].decode("latin-1"),
)
def test_invalid_http_is_400_problem(gateway: Running, raw: bytes):
    status, headers, problem = parsed(exchange(gateway, raw))
    assert (status, headers["content-type"]) == (400, "application/problem+json")
    assert problem["detail"].startswith("This is not a valid HTTP/1.1 request: ")
    assert "bytearray" not in problem["detail"]
    assert problem == body_of(BadRequest(problem["detail"]), request_id=problem["requestId"])


def test_request_head_below_limit_is_accepted(gateway: Running):
    raw = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"x" * 60_000 + b"\r\n\r\n"
    assert parsed(exchange(gateway, raw))[0] == 200


def test_endless_request_head_is_cut_off(gateway: Running):
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(b"x" * 100_000_000)


def test_incomplete_request_head_times_out(gateway: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http11, "HEAD_SECONDS", 0.05)
    assert exchange(gateway, b"GET /health HTTP/1.1\r\nX: ") == b""


def test_garbage_after_request_closes_connection(gateway: Running):
    answer = exchange(gateway, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\ngarbage\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_garbage_in_refused_body_closes_connection_after_response(gateway: Running):
    head = b"POST /nope HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(head + b"1\r\nx\r\n")
        answer = connection.recv(65_536)
        connection.sendall(b"no size at all\r\n")
        rest = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert parsed(answer + rest)[0] == 404


def test_head_size_is_counted_per_request(gateway: Running):
    with httpx2.Client(base_url=gateway.url, headers={"X": "x" * 40_000}, timeout=PATIENCE) as client:
        assert [client.get("/health").status_code for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"GET /skills HTTP/1.0\r\n\r\n", 403, "host_not_allowed"),
        (b"GET /nope?%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404, "not_found"),
        (b"PUT /message HTTP/1.1\r\nHost: localhost:x\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"GET http:///health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404, "not_found"),
        (
            b"GET http://a@localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            404,
            "not_found",
        ),
        (
            b"GET ftp://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            404,
            "not_found",
        ),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404, "not_found"),
        (b"FOO /message HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404, "not_found"),
    ],
)
def test_unusual_requests_get_usual_responses(gateway: Running, raw: bytes, status: int, code: str):
    answer = parsed(exchange(gateway, raw))
    assert (answer[0], answer[2]["code"]) == (status, code)


@pytest.mark.parametrize(
    "target",
    [b"http://localhost/skills", b"HTTPS://127.0.0.1:1/api/skill%73?limit=http://h/", b"http://[::1]?a=b"],
)
def test_absolute_target_is_reduced_to_its_path(gateway: Running, target: bytes):
    request = b"GET %s HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n" % target
    assert exchange(gateway, request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("authority", [b"evil.example", b"localhost.evil.example:80", b"[", b"localhost\\"])
def test_authority_of_absolute_target_overrides_host_header(gateway: Running, authority: bytes):
    request = b"GET http://%s/skills HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % authority
    answer = parsed(exchange(gateway, request))
    assert (answer[0], answer[2]["code"]) == (403, "host_not_allowed")


def test_health_accepts_absolute_target(tmp_path: Path):
    door = Door()
    request = b"GET http://gate.example/%s HTTP/1.1\r\nHost: gate.example\r\nConnection: close\r\n\r\n"
    with running(tmp_path, door, gateway_token="0123456789abcdef") as gateway:
        door.reached.wait()
        assert parsed(exchange(gateway, request % b"health"))[2]["status"] == "starting"
        door.opened.set()
        gateway.ready.wait()
        assert parsed(exchange(gateway, request % b"health"))[2]["status"] == "ok"
        assert parsed(exchange(gateway, request % b"skills"))[0] == 401


def test_request_with_two_lengths_closes_connection(gateway: Running):
    body = b'{"content": "hi"}'
    first = (
        b"POST /message HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    ) % (len(body), len(body), body)
    status, headers, answer = parsed(
        exchange(gateway, first + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    )
    assert (status, headers["connection"], answer["reply"]) == (200, "close", "yes")


def test_head_sends_no_body(gateway: Running):
    for path in (b"/health", b"/nope", b"/message"):
        answer = exchange(
            gateway, b"HEAD " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert answer.endswith(b"\r\n\r\n")


def test_message_with_upgrade_header_is_answered_without_upgrade(gateway: Running):
    body = b'{"content": "hi"}'
    raw = (
        b"POST /message HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        b"Content-Length: %d\r\n\r\n%s"
    ) % (len(body), body)
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(raw)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


# --- large bodies


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/message", "/nope", "/skills"])
def test_huge_body_is_refused_early_with_readable_response(gateway: Running, path: str, chunked: bool):
    sent = 0
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    size = "Transfer-Encoding: chunked" if chunked else "Content-Length: 20000000"
    piece = b" " * 50_000
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        connection.sendall(f"{head}{size}\r\n\r\n".encode())
        try:
            for _ in range(400):
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                sent += len(piece)
        except OSError:  # the gateway has closed the connection
            pass
        answer = connection.recv(65_536)
    status, headers, problem = parsed(answer)
    assert status == problem["status"] == {"/message": 413, "/nope": 404, "/skills": 405}[path]
    assert headers["connection"] == "close"
    assert sent < 20_000_000


def test_client_that_writes_whole_body_first_reads_413(gateway: Running):
    answer = httpx2.post(
        gateway.url + "/message",
        content=b" " * 20_000_000,
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE,
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_refused_small_body_keeps_connection_open(gateway: Running):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
    statuses: list[int] = []
    for body in (b"x" * 200_000, b'{"content": "hi"}'):
        connection.request("POST", "/message", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        statuses.append(answer.status)
        answer.read()
    connection.close()
    assert statuses == [400, 200]


def test_disconnect_during_body_is_harmless(gateway: Running, caplog: pytest.LogCaptureFixture):
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(
            b"POST /message HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"content"'
        )
    assert httpx2.get(gateway.url + "/health", timeout=PATIENCE).status_code == 200
    assert "Traceback" not in caplog.text


# --- disconnecting


def test_disconnect_from_stream_or_wait_does_not_cancel_turn(
    gateway: Running, caplog: pytest.LogCaptureFixture
):
    turns: list[str] = []
    with httpx2.stream(
        "POST",
        gateway.url + "/message",
        json={"content": "hi", "channelId": "left"},
        headers={"Accept": "text/event-stream"},
        timeout=PATIENCE,
    ) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                turns.append(json.loads(line.removeprefix("data: "))["id"])
                break
    # The next message of its session is answered after it.
    assert (
        httpx2.post(
            gateway.url + "/message", json={"content": "hi", "channelId": "left"}, timeout=PATIENCE
        ).status_code
        == 200
    )
    assert httpx2.get(f"{gateway.url}/v1/turns/{turns[0]}", timeout=PATIENCE).json()["status"] == "completed"
    assert "Traceback" not in caplog.text
