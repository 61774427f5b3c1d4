"""Invalid fields of request bodies become field faults."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from torana.api.request_body import read_body
from torana.api.schemas.approvals import DecisionRequest
from torana.api.schemas.base import RequestBody
from torana.api.schemas.memories import MemoryChange, MemoryRequest
from torana.api.schemas.people import TokenRequest
from torana.api.schemas.schedules import ScheduleRequest
from torana.errors import InvalidField, MemoryTooLong


async def read(model: type[RequestBody], **document: Any) -> RequestBody:
    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(document).encode()}

    headers = [(b"content-type", b"application/json")]
    state = {"services": SimpleNamespace(body_timeout=5), "authenticated_at": time.monotonic()}
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "state": state}
    return await read_body(Request(scope, receive), model)


@pytest.mark.parametrize(
    ("model", "document", "fault"),
    [
        (ScheduleRequest, {}, ("/text", "is missing")),
        (ScheduleRequest, {"text": 7}, ("/text", "must be a string")),
        (ScheduleRequest, {"text": "x", "kind": "shout"}, ("/kind", "must be one of 'remind' or 'task'")),
        (ScheduleRequest, {"text": "x", "userId": True}, ("/userId", "must be a string or an integer")),
        (ScheduleRequest, {"text": "x", "userId": 10**300}, ("/userId", "must have at most 256 characters")),
        (TokenRequest, {"user": ""}, ("/user", "must not be empty")),
        (TokenRequest, {"scopes": []}, ("/scopes", "must not be empty")),
        (TokenRequest, {"scopes": "read"}, ("/scopes", "must be a list")),
        (TokenRequest, {"expiresIn": "1d"}, ("/expiresIn", "must be a whole number of seconds")),
        (TokenRequest, {"expiresIn": 0}, ("/expiresIn", "must be at least 1")),
        (TokenRequest, {"expiresIn": 1e300}, ("/expiresIn", "must be at most 315,360,000")),
        (MemoryRequest, {"text": " "}, ("/text", "must not be blank")),
        (DecisionRequest, {"decision": "approve", "arguments": []}, ("/arguments", "must be an object")),
        (
            DecisionRequest,
            {"decision": "deny", "arguments": {}},
            ("/arguments", "can only be changed in an approval"),
        ),
    ],
)
async def test_invalid_field_is_named(
    model: type[RequestBody], document: dict[str, Any], fault: tuple[str, str]
):
    with pytest.raises(InvalidField) as caught:
        await read(model, **document)
    assert [(fault.pointer, fault.detail) for fault in caught.value.faults] == [fault]
    assert caught.value.detail == f"`{fault[0][1:]}` {fault[1]}."


async def test_all_invalid_fields_are_named():
    with pytest.raises(InvalidField) as caught:
        await read(TokenRequest, user=1.5, label=7)
    assert caught.value.detail == "`user` must be a string or an integer; `label` must be a string."
    assert [fault.pointer for fault in caught.value.faults] == ["/user", "/label"]


async def test_invalid_item_is_named_by_its_position():
    with pytest.raises(InvalidField, match="`scopes` item 1 must be one of 'message'") as caught:
        await read(TokenRequest, scopes=["read", "root", "king"])
    assert [fault.pointer for fault in caught.value.faults] == ["/scopes"]


async def test_long_memory_is_too_large_even_with_other_faults():
    with pytest.raises(MemoryTooLong) as caught:
        await read(MemoryRequest, text="x" * 2_001, subject=7)
    assert [fault.pointer for fault in caught.value.faults] == ["/text"]


async def test_empty_memory_change_is_refused():
    with pytest.raises(InvalidField, match="send `text`, `subject` or both"):
        await read(MemoryChange, textual="x")


async def test_snake_case_fields_are_ignored():
    assert await read(TokenRequest, expires_in=5) == TokenRequest()


@pytest.mark.parametrize("given", [12345, 12345.0])
async def test_integer_field_accepts_fraction_of_zero(given: float):
    token = await read(TokenRequest, expiresIn=given)
    assert token == TokenRequest.model_validate({"expiresIn": 12345})
