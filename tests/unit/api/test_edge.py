import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from torana.api.middleware.request_scope import ApiPrefix, Methods, RequestScope, UnreadBody
from torana.api.request_body import BODY_LIMIT
from torana.errors import Unauthorized

Ask = Callable[..., Coroutine[Any, Any, Any]]
MIB = 1024 * 1024


async def echo_path(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(scope["path"])(scope, receive, send)


async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse the request without reading its body."""
    await PlainTextResponse("no", status_code=413)(scope, receive, send)


async def reads(scope: Scope, receive: Receive, send: Send) -> None:
    await Request(scope, receive).body()
    await PlainTextResponse("yes")(scope, receive, send)


async def raises_unauthorized(scope: Scope, receive: Receive, send: Send) -> None:
    raise Unauthorized


async def has_a_bug(scope: Scope, receive: Receive, send: Send) -> None:
    raise KeyError("a secret place")


async def breaks_off(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise KeyError("too late")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/api/message", "/message"),
        ("/api/", "/"),
        ("/message", "/message"),
        ("/api", "/api"),
        ("/apis/message", "/apis/message"),
        ("/api/api/message", "/api/message"),  # one prefix is taken, not any number
        ("/api//message", "//message"),
        ("//api/message", "//api/message"),
        ("/API/message", "/API/message"),
    ],
)
async def test_single_api_prefix_is_removed(ask: Ask, path: str, meant: str):
    assert (await ask(ApiPrefix(echo_path), "GET", path)).body.decode() == meant


async def test_responses_have_different_request_ids(ask: Ask):
    answer = await ask(RequestScope(echo_path), "GET", "/")
    other = await ask(RequestScope(echo_path), "GET", "/")
    assert answer.headers["x-request-id"] != other.headers["x-request-id"]


async def test_middleware_error_is_problem_with_request_id(ask: Ask):
    answer = await ask(RequestScope(raises_unauthorized), "GET", "/")
    assert answer.status == 401
    assert answer.headers["x-request-id"].encode() in answer.body


async def test_bug_is_logged_and_its_problem_hides_details(ask: Ask, caplog: pytest.LogCaptureFixture):
    answer = await ask(RequestScope(has_a_bug), "GET", "/")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "KeyError" in caplog.text


async def test_bug_after_response_start_ends_response(ask: Ask, caplog: pytest.LogCaptureFixture):
    answer = await ask(RequestScope(breaks_off), "GET", "/")
    assert [message["type"] for message in answer.sent] == ["http.response.start"]
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("started", [False, True])
async def test_cancelled_request_is_answered_once(started: bool):
    entered = asyncio.Event()

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        entered.set()
        await asyncio.Event().wait()

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    scope: Scope = {"type": "http", "method": "POST", "path": "/message", "headers": []}
    task = asyncio.create_task(RequestScope(hangs)(scope, receive, send))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if started:
        assert [message["status"] for message in sent] == [200]
    else:
        assert sent[0]["status"] == 503
        assert b'"code":"draining"' in sent[1]["body"]


@pytest.mark.parametrize(("path", "level"), [("/health", logging.DEBUG), ("/skills", logging.INFO)])
async def test_request_is_logged_once(ask: Ask, caplog: pytest.LogCaptureFixture, path: str, level: int):
    caplog.set_level(logging.DEBUG)
    await ask(RequestScope(echo_path), "GET", path)
    [line] = [record for record in caplog.records if record.name == "torana.api.middleware.request_scope"]
    fields = vars(line)
    assert (line.levelno, fields["method"], fields["path"], fields["status"]) == (level, "GET", path, 200)


async def test_long_path_is_shortened_in_the_log(ask: Ask, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    await ask(RequestScope(echo_path), "GET", "/" + "a" * 10_000)
    [line] = [record for record in caplog.records if record.name == "torana.api.middleware.request_scope"]
    assert vars(line)["path"] == "/" + "a" * 499 + "…"


async def test_large_refused_body_is_partly_read_and_connection_closes(ask: Ask):
    headers = [("Content-Length", str(20 * MIB))]
    answer = await ask(UnreadBody(refuses), "POST", "/", headers, body=[b" " * 65_536] * 320)
    assert answer.headers["connection"] == "close"
    assert answer.body == b"no"
    # A megabyte more was read, not twenty.
    assert len(answer.unread) == 320 - 16


async def test_short_refused_chunked_body_is_read_to_its_end(ask: Ask):
    headers = [("Transfer-Encoding", "chunked")]
    answer = await ask(UnreadBody(refuses), "POST", "/", headers, body=[b" " * 65_536] * 4)
    assert (answer.headers["connection"], answer.body, answer.unread) == ("close", b"no", [])


async def test_streamed_refusal_of_unread_body_is_complete(ask: Ask):
    async def in_pieces(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body", "body": b"n", "more_body": True})
        await send({"type": "http.response.body", "body": b"o"})

    headers = [("Transfer-Encoding", "chunked")]
    answer = await ask(UnreadBody(in_pieces), "POST", "/", headers, body=[b"x", b"y"])
    assert (answer.body, answer.unread, answer.sent[-1]["more_body"]) == (b"no", [], False)


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Length", str(BODY_LIMIT))],  # the server reads so much in passing
        [],
    ],
)
async def test_small_refused_body_keeps_connection(ask: Ask, headers: list[tuple[str, str]]):
    answer = await ask(UnreadBody(refuses), "POST", "/", headers, body=[b"{}"])
    assert "connection" not in answer.headers


async def test_fully_read_chunked_body_keeps_connection(ask: Ask):
    headers = [("Transfer-Encoding", "chunked")]
    answer = await ask(UnreadBody(reads), "POST", "/", headers, body=[b"{", b"}"])
    assert (answer.body, "connection" in answer.headers) == (b"yes", False)


async def test_disconnect_ends_reading_of_refused_body():
    answers = iter([{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(answers)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"transfer-encoding", b"chunked")]
    await UnreadBody(refuses)({"type": "http", "method": "POST", "headers": headers}, receive, send)
    assert [message.get("more_body") for message in sent] == [None, True, False]
    assert next(answers, None) is None


async def test_response_ends_although_client_stalls():
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", b"9000000")]
    app = UnreadBody(refuses, linger=0)
    await app({"type": "http", "method": "POST", "headers": headers}, receive, send)
    assert sent[-1]["more_body"] is False


def by_path(path: str) -> list[str]:
    return {"/skills": ["GET", "HEAD", "OPTIONS"], "/message": ["OPTIONS", "POST"]}.get(path, [])


async def method_and_path(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(f"{scope['method']} {scope['path']}")(scope, receive, send)


async def test_options_lists_methods_of_path(ask: Ask):
    answer = await ask(Methods(method_and_path, allowed=by_path), "OPTIONS", "/skills")
    assert (answer.status, answer.headers["allow"], answer.body) == (204, "GET, HEAD, OPTIONS", b"")


async def test_head_has_headers_of_get_and_no_body(ask: Ask):
    got = await ask(Methods(method_and_path, allowed=by_path), "GET", "/skills")
    headed = await ask(Methods(method_and_path, allowed=by_path), "HEAD", "/skills")
    assert headed.body == b""
    assert headed.headers == got.headers


@pytest.mark.parametrize(
    "request_line", ["OPTIONS /nope", "HEAD /nope", "HEAD /message", "POST /message", "GET /x"]
)
async def test_other_requests_reach_router_unchanged(ask: Ask, request_line: str):
    answer = await ask(Methods(method_and_path, allowed=by_path), *request_line.split())
    assert answer.body.decode() == request_line
