import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message

from torana.api import request_body
from torana.api.dependencies import RequiredScopes, slot_of
from torana.api.export_stream import ExportStream
from torana.api.middleware.request_scope import ResponseAborted
from torana.api.request_body import (
    BODY_LIMIT,
    is_too_large,
    optional_object,
    parse_message,
    read_object,
)
from torana.api.schemas.contract import AnswerBody
from torana.api.schemas.turns import TurnBody
from torana.errors import (
    BadRequest,
    BodyTooLarge,
    ContentTooLong,
    GatewayError,
    InvalidField,
    RequestTimeout,
    Unauthorized,
)
from torana.messages import Failure, Principal, Turn, Usage
from torana.sessions.listing import Session, SessionMessage
from torana.workers.fair_slots import FairSlots

LOCAL = Principal(name="local")
AT = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)


END: Message = {"type": "http.request"}
GONE: Message = {"type": "http.disconnect"}


def request(
    chunks: Iterable[bytes], *, then: Message | None = END, content_type: str = "application/json"
) -> Request:
    """Return a request that receives these chunks and ``then`` a last message; ``None`` waits forever."""
    coming = iter(chunks)

    async def receive() -> Message:
        for chunk in coming:
            return {"type": "http.request", "body": chunk, "more_body": True}
        if then is None:
            await asyncio.Event().wait()
        return then or END

    headers = [(b"content-type", content_type.encode())]
    services = SimpleNamespace(parsing=FairSlots(total=1, per_user=1))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/message",
        "headers": headers,
        "state": {"principal": LOCAL, "authenticated_at": time.monotonic(), "services": services},
    }
    return Request(scope, receive)


async def test_long_body_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(request_body.asyncio, "sleep", sleep)
    await read(json.dumps({"a": [0] * 100}).encode())
    assert pauses == []
    await read(json.dumps({"a": [0] * 9_000}).encode())
    with pytest.raises(BadRequest):
        await read(b"[" * 9_000)
    assert len(pauses) == 2
    assert min(pauses) > 0


async def read(*chunks: bytes) -> dict[str, Any]:
    return await read_object(request(chunks), within=5)


def fields_of(**document: Any) -> tuple[str | None, str | None]:
    inbound = parse_message({"content": "hi", **document}, LOCAL)
    return inbound.channel, inbound.user


async def test_body_may_arrive_in_pieces():
    assert await read(b'{"content": "', b"\xc3", b"\xa4", b'"}') == {"content": "ä"}


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"]
)
async def test_json_media_types_are_accepted(media_type: str):
    assert await read_object(request([b"{}"], content_type=media_type), within=5) == {}


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ({}, {}),
        ({"content-length": "0"}, {}),
        ({"content-length": "7"}, {"a": 1}),
        ({"transfer-encoding": "chunked"}, {"a": 1}),
    ],
)
async def test_optional_body_is_read_if_announced(headers: dict[str, str], sent: dict[str, Any]):
    there = request([b'{"a":1}'] if sent else [], content_type="application/json" if sent else "text/plain")
    there.scope["headers"] += [(name.encode(), value.encode()) for name, value in headers.items()]
    assert await optional_object(there, within=5) == sent


@pytest.mark.parametrize("given", [None, "queue", "steer", "interrupt", "reject"])
def test_on_busy_defaults_to_queue(given: str | None):
    assert parse_message({"content": "hi", "onBusy": given}, LOCAL).on_busy == (given or "queue")


@pytest.mark.parametrize("given", ["", "Queue", 1, [], False])
def test_unknown_on_busy_is_refused(given: object):
    with pytest.raises(InvalidField, match="must be one of queue, steer, interrupt, reject"):
        parse_message({"content": "hi", "onBusy": given}, LOCAL)


async def test_chunked_body_is_read_only_to_limit():
    chunks = iter([b" " * 1024] * 1000)
    with pytest.raises(BodyTooLarge):
        await read_object(request(chunks), within=5)
    assert len(list(chunks)) == 1000 - 257


async def test_incomplete_body_is_bad_request():
    with pytest.raises(BadRequest, match="closed before the whole body"):
        await read_object(request([b'{"content"'], then=GONE), within=5)


async def test_slow_body_closes_connection():
    with pytest.raises(RequestTimeout) as caught:
        await read_object(request([b"{"], then=None), within=0)
    assert caught.value.headers == {"Connection": "close"}


@pytest.mark.parametrize(
    ("length", "too_large"),
    [
        ("0", False),
        (str(BODY_LIMIT), False),
        (str(BODY_LIMIT + 1), True),
        ("9" * 5000, True),
        ("-1", False),
        ("ten", False),
        ("", False),
    ],
)
def test_declared_length_over_limit_is_too_large(length: str, too_large: bool):
    assert is_too_large(Headers({"content-length": length})) is too_large


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("12345", "12345"),
        (12345, "12345"),
        (-7, "-7"),
        (0, "0"),
        (None, None),
        ("", None),
        (" ", " "),
        ("A" * 256, "A" * 256),
        ("é", "é"),  # compared as it is: "e" and an accent would be another one
    ],
)
def test_id_is_string_integer_or_absent(given: object, meant: str | None):
    assert fields_of(channelId=given, userId=given) == (meant, meant)


def test_absent_ids_are_none():
    assert fields_of() == (None, None)


@pytest.mark.parametrize("given", [True, False, 1.0, 1e300, [], {}, ["a"], "x" * 257, 10**256, -(10**255)])
@pytest.mark.parametrize("name", ["channelId", "userId"])
def test_id_of_wrong_type_or_size_is_refused_with_its_field(name: str, given: object):
    with pytest.raises(InvalidField) as caught:
        fields_of(**{name: given})
    assert [fault.pointer for fault in caught.value.faults] == [f"/{name}"]


@pytest.mark.parametrize("digits", [256, 257, 999, 4300, 50_000])
async def test_integer_id_has_at_most_256_digits(digits: int):
    document = await read(b'{"content": "hi", "userId": ' + b"1" * digits + b"}")
    if digits <= 256:
        assert parse_message(document, LOCAL).user == "1" * digits
    else:
        with pytest.raises(InvalidField, match="`userId` must have at most 256"):
            parse_message(document, LOCAL)


async def test_huge_integer_in_unknown_field_is_ignored():
    assert parse_message(await read(b'{"content": "hi", "x": ' + b"1" * 9000 + b"}"), LOCAL).content == "hi"


def test_length_in_code_points_is_checked_before_blankness():
    assert parse_message({"content": "😀" * 10_000}, LOCAL).content == "😀" * 10_000
    with pytest.raises(ContentTooLong, match="10,001 characters"):
        parse_message({"content": " " * 10_001}, LOCAL)


@given(
    st.dictionaries(
        st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)
    )
)
async def test_any_document_becomes_message_or_gateway_error(document: dict[str, Any]):
    raw = json.dumps(document).encode()
    try:
        inbound = parse_message(await read(raw), LOCAL)
    except GatewayError as error:
        json.dumps([fault.pointer for fault in error.faults], ensure_ascii=False).encode()
    else:
        assert inbound.content == document["content"]


@given(st.binary(max_size=200))
async def test_any_bytes_are_object_or_bad_request(raw: bytes):
    try:
        document = await read(raw)
    except BadRequest:
        return
    assert json.loads(raw) == document


@pytest.mark.parametrize("name", ["\ud800", "a\0b"])
async def test_invalid_field_name_is_reported_in_utf_8(name: str):
    with pytest.raises(BadRequest) as caught:
        await read(json.dumps({name: "\0"}).encode())
    assert caught.value.faults[0].pointer.encode()


async def test_pointer_escapes_slash_and_tilde():
    with pytest.raises(BadRequest) as caught:
        await read(b'{"a/b~c": "\\u0000"}')
    assert caught.value.faults[0].pointer == "/a~1b~0c"


def turn(**changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "id": "turn_1",
        "owner": "gateway",
        "session_id": "ses_1",
        "channel": "c",
        "seq": 1,
        "principal": "local",
        "user": None,
        "content": "hi",
        "state": "completed",
        "attempt": 1,
        "created_at": AT,
        "reply": "hello",
        "model": "builtin",
        "usage": Usage(input_tokens=3, output_tokens=2, cost_usd=0.5),
        "ended_at": AT,
    }
    return Turn(**fields | changes)


def answer(turn: Turn) -> dict[str, Any]:
    return AnswerBody.from_turn(turn).model_dump(mode="json")


def turn_body(turn: Turn) -> dict[str, Any]:
    return TurnBody.from_turn(turn).model_dump(mode="json")


def test_response_has_all_members():
    assert answer(turn()) == {
        "reply": "hello",
        "id": "turn_1",
        "channelId": "c",
        "userId": None,
        "sessionId": "ses_1",
        "status": "completed",
        "model": "builtin",
        "usage": {
            "inputTokens": 3,
            "outputTokens": 2,
            "costUsd": 0.5,
            "estimatedInput": {"instructions": 0, "tools": 0, "history": 0},
        },
        "createdAt": "2026-05-01T09:30:00+00:00",
    }


def test_empty_reply_is_string():
    assert answer(turn(reply=None))["reply"] == ""


def test_failed_turn_has_error():
    failed = turn_body(
        turn(state="failed", reply=None, model=None, failure=Failure(code="model_failed", detail="d"))
    )
    assert (failed["status"], failed["reply"], failed["model"]) == ("failed", None, None)
    assert failed["error"] == {"code": "model_failed", "detail": "d"}


def test_running_turn_has_no_reply_and_no_end():
    running = turn_body(turn(state="running", reply=None, model=None, ended_at=None))
    assert (running["status"], running["reply"], running["error"], running["endedAt"]) == (
        "running",
        None,
        None,
        None,
    )


def request_of_an_ended_token() -> Request:
    """A request that waits since two seconds, and whose token has ended."""
    tokens = SimpleNamespace(is_active=AsyncMock(return_value=False))
    waited = request([])
    waited.state.authenticated_at = time.monotonic() - 2
    waited.state.services = SimpleNamespace(people=SimpleNamespace(tokens=tokens))
    return waited


async def test_request_that_waited_is_refused_if_its_token_has_ended():
    with pytest.raises(Unauthorized):
        await RequiredScopes("message")(request_of_an_ended_token())


async def test_request_that_waited_for_a_slot_is_refused_if_its_token_has_ended():
    slots = FairSlots(total=1, per_user=1)

    with pytest.raises(Unauthorized):
        async with slot_of(request_of_an_ended_token(), slots):
            pytest.fail("the request was processed")
    async with slot_of(request([]), slots):  # the slot is free
        pass


async def test_export_ends_when_the_token_ends():
    async def pages() -> AsyncGenerator[Sequence[SessionMessage]]:
        for number in range(3):
            checked.append(number)
            yield []

    checked: list[int] = []
    session = SimpleNamespace(**dict.fromkeys(Session.__dataclass_fields__, ""))
    check = AsyncMock(side_effect=[None, Unauthorized()])
    stream = ExportStream(cast("Session", session), "jsonl", pages(), check=check)

    with pytest.raises(ResponseAborted):
        async for _ in stream.body_iterator:
            pass
    assert checked == [0, 1]
