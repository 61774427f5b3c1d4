"""The HTTP listener for calls from chat platforms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx2
import pytest

from torana import http11
from torana.connectors.base import HookRequest, HookResponse
from torana.connectors.runtime import callback_listener
from torana.connectors.runtime.callback_listener import HooksListener
from torana.errors import OperatorError


class Answers:
    """A handler that records calls and returns a set response."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, HookRequest]] = []
        self.response: HookResponse | Exception = HookResponse(body=b"ok")
        self.called = asyncio.Event()
        #: While this event is not set, calls wait for their response.
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, account: str, request: HookRequest) -> HookResponse:
        self.calls.append((account, request))
        self.called.set()
        await self.gate.wait()
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def listener(answers: Answers) -> AsyncGenerator[HooksListener]:
    listener = HooksListener(host="127.0.0.1", port=0, exists=str.islower, answer=answers)
    await listener.start()
    yield listener
    await listener.stop()


@pytest.fixture
async def client(listener: HooksListener) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client:
        yield client


async def heard_after(listener: HooksListener, raw: bytes) -> bytes:
    """Send ``raw`` and return all bytes that the listener answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(raw)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


async def test_call_reaches_its_account_unchanged(client: httpx2.AsyncClient, answers: Answers) -> None:
    answer = await client.post("/hooks/my-line?a=1&b=", content=b"\xff{}", headers={"X-Signature": "abc"})

    assert (answer.status_code, answer.content) == (200, b"ok")
    ((account, request),) = answers.calls
    assert (account, request.method, request.body) == ("my-line", "POST", b"\xff{}")
    assert request.query == {"a": "1", "b": ""}
    assert request.headers["x-signature"] == "abc"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 404),
        ("GET", "/", 404),
        ("POST", "/message", 404),
        ("POST", "/hooks/", 404),
        ("POST", "/hooks/a/b", 404),
        ("DELETE", "/hooks/a", 405),
    ],
)
async def test_unknown_paths_and_methods_are_refused(
    client: httpx2.AsyncClient, answers: Answers, method: str, path: str, status: int
) -> None:
    assert (await client.request(method, path)).status_code == status
    assert answers.calls == []


async def test_call_over_size_limit_is_413(client: httpx2.AsyncClient, answers: Answers) -> None:
    assert (await client.post("/hooks/a", content=bytes(3_000_000))).status_code == 413
    assert answers.calls == []


async def test_large_calls_have_a_common_limit_and_small_ones_pass(
    client: httpx2.AsyncClient, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_listener, "_LARGE_BYTES", 500_000)
    answers.gate.clear()
    large = asyncio.create_task(client.post("/hooks/line", content=b"x" * 400_000))
    async with asyncio.timeout(20):
        await answers.called.wait()

    assert (await client.post("/hooks/line", content=b"x" * 400_000)).status_code == 503
    answers.gate.set()
    assert (await client.post("/hooks/line", content=b"x" * 60_000)).status_code == 200
    assert (await large).status_code == 200
    assert (await client.post("/hooks/line", content=b"x" * 400_000)).status_code == 200


async def test_oldest_incomplete_call_gives_way_to_a_new_one(
    client: httpx2.AsyncClient, listener: HooksListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_listener, "_LARGE_BYTES", 500_000)
    monkeypatch.setattr(callback_listener, "_PATIENCE", 0.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"POST /hooks/line HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 500_000)
    await writer.drain()

    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(8):
            yield b"x" * 50_000

    assert (await client.post("/hooks/line", content=endless())).status_code == 200
    async with asyncio.timeout(20):
        assert b" 503 " in await reader.readline()
    writer.close()


async def test_body_for_an_unknown_account_is_not_read(listener: HooksListener) -> None:
    head = b"POST /hooks/NOBODY HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n"

    assert b" 404 " in await heard_after(listener, head)


async def test_other_work_runs_between_the_checks_of_many_calls() -> None:
    passes, at = 0, list[int]()

    async def answer(_account: str, _request: HookRequest) -> HookResponse:
        at.append(passes)
        return HookResponse()

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}"}

    async def send(_message: object) -> None: ...

    async def work() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    listener = HooksListener(host="127.0.0.1", port=0, exists=str.islower, answer=answer)
    scope: dict[str, object] = {"path": "/hooks/home", "method": "POST", "headers": [], "query_string": b""}
    working = asyncio.create_task(work())
    await asyncio.gather(*(listener(scope, receive, send) for _ in range(50)))
    working.cancel()

    assert len(set(at)) == 50


async def test_exception_in_handler_is_503(client: httpx2.AsyncClient, answers: Answers) -> None:
    answers.response = OSError("the store cannot be written")

    answer = await client.post("/hooks/a")

    assert (answer.status_code, answer.content) == (503, b"")


async def test_taken_port_is_reported() -> None:
    first = HooksListener(host="127.0.0.1", port=0, exists=str.islower, answer=Answers())
    await first.start()
    second = HooksListener(host="127.0.0.1", port=first.port, exists=str.islower, answer=Answers())

    with pytest.raises(OperatorError, match="TORANA_HOOKS_PORT"):
        await second.start()

    await first.stop()


@pytest.mark.parametrize("raw", [b"", b"POST /hooks/a HTTP/1.1\r\nHost: h\r\nX: "])
async def test_unfinished_request_head_times_out(
    listener: HooksListener, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    monkeypatch.setattr(http11, "HEAD_SECONDS", 0.05)

    assert await heard_after(listener, raw) == b""


async def test_unfinished_second_request_head_times_out(
    listener: HooksListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http11, "HEAD_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"POST /hooks/a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")

    writer.write(b"POST /hooks/a")
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_answer_may_take_longer_than_head_timeout(
    client: httpx2.AsyncClient, listener: HooksListener, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http11, "HEAD_SECONDS", 0.05)
    answers.gate.clear()
    call = asyncio.create_task(client.post("/hooks/a"))
    await answers.called.wait()

    await heard_after(listener, b"POST")  # it came later, but its time has passed
    answers.gate.set()

    assert (await call).status_code == 200


async def test_absolute_form_target_is_reduced_to_path(listener: HooksListener, answers: Answers) -> None:
    raw = b"GET http://h/hooks/a?b=c HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n"
    assert (await heard_after(listener, raw)).startswith(b"HTTP/1.1 200 ")
    ((account, request),) = answers.calls
    assert (account, request.query, request.headers["host"]) == ("a", {"b": "c"}, "h")


async def test_call_with_two_lengths_closes_its_connection(listener: HooksListener, answers: Answers) -> None:
    lengths = b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    await heard_after(listener, (b"POST /hooks/a HTTP/1.1\r\nHost: h\r\n" + lengths) * 2)
    assert [request.body for _, request in answers.calls] == [b"x"]


async def test_malformed_request_is_400(listener: HooksListener, answers: Answers) -> None:
    for raw in (b"hello\r\n\r\n", b"GET /hooks/a HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 70_000):
        assert (await heard_after(listener, raw)).startswith(b"HTTP/1.1 400 ")
    assert answers.calls == []


async def test_connections_over_limit_are_closed(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callback_listener, "_CONNECTIONS", 1)
    listener = HooksListener(host="127.0.0.1", port=0, exists=str.islower, answer=answers)
    await listener.start()
    answers.gate.clear()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client:
        call = asyncio.create_task(client.post("/hooks/a"))
        await answers.called.wait()
        assert [await heard_after(listener, b"") for _ in range(3)] == [b"", b"", b""]
        answers.gate.set()
        assert (await call).status_code == 200
    assert [record.message for record in caplog.records] == ["too_many_connections"]
    await listener.stop()


@pytest.mark.parametrize(
    "slow",
    [
        b"",
        b"POST /hooks/a HTTP/1.1\r\nHost: h\r\nX: ",
        b"POST /hooks/a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1",
    ],
    ids=["nothing", "head", "body"],
)
async def test_slow_connections_are_evicted_for_new_calls(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: bytes
) -> None:
    monkeypatch.setattr(callback_listener, "_CONNECTIONS", 3)
    listener = HooksListener(host="127.0.0.1", port=0, exists=str.islower, answer=answers)
    await listener.start()
    slow_ones = [asyncio.create_task(heard_after(listener, slow)) for _ in range(3)]
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client:
        for _ in range(3):
            assert (await client.post("/hooks/a", headers={"Connection": "close"})).status_code == 200
    await asyncio.wait(slow_ones, return_when=asyncio.FIRST_COMPLETED)
    assert {record.message for record in caplog.records} == {"slow_connections_evicted"}
    for caller in slow_ones:
        caller.cancel()
    await asyncio.wait(slow_ones)
    await listener.stop()
