from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from torana.api.middleware.cors import Cors
from torana.api.serving.framework import openapi

Ask = Callable[..., Coroutine[Any, Any, Any]]

LISTED = ("Origin", "https://app.example")
APP = Cors(PlainTextResponse("in", status_code=401), origins=["https://app.example"])


DOCUMENT = openapi(guarded=True)
OPERATIONS = [(method, told) for path in DOCUMENT["paths"].values() for method, told in path.items()]


def listed(value: str) -> set[str]:
    return set(value.lower().split(", "))


def preflight(origin: str, *, method: str = "POST") -> list[tuple[str, str]]:
    return [("Origin", origin), ("Access-Control-Request-Method", method)]


@pytest.mark.parametrize("wanted", ["POST", "DELETE", "PUT"])
async def test_preflight_of_allowed_origin_is_answered(ask: Ask, wanted: str):
    answer = await ask(APP, "OPTIONS", "/message", preflight("https://app.example", method=wanted))
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "Origin" in answer.headers["vary"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://app.example.evil.example", "http://app.example", ""]
)
async def test_preflight_of_other_origin_is_passed_on(ask: Ask, origin: str):
    answer = await ask(APP, "OPTIONS", "/message", preflight(origin))
    assert (answer.status, answer.body) == (401, b"in")
    assert "access-control-allow-origin" not in answer.headers


async def test_allowed_origin_can_read_error_and_its_headers(ask: Ask):
    answer = await ask(APP, "POST", "/message", [LISTED])
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "Retry-After" in answer.headers["access-control-expose-headers"]


async def test_other_origin_gets_no_cors_headers(ask: Ask):
    answer = await ask(APP, "POST", "/message", [("Origin", "https://evil.example")])
    assert "access-control-allow-origin" not in answer.headers
    assert "Origin" in answer.headers["vary"]


async def test_options_without_origin_is_passed_on(ask: Ask):
    assert (await ask(APP, "OPTIONS", "/message")).body == b"in"


async def test_allowed_origin_may_use_all_methods_and_headers_of_api(ask: Ask):
    parameters = [one for _, told in OPERATIONS for one in told.get("parameters", ())]
    headers = {one["name"].lower() for one in parameters if one["in"] == "header"}
    assert {"idempotency-key", "prefer", "last-event-id"} <= headers

    answer = await ask(APP, "OPTIONS", "/message", preflight("https://app.example"))

    assert listed(answer.headers["access-control-allow-methods"]) >= {method for method, _ in OPERATIONS}
    assert listed(answer.headers["access-control-allow-headers"]) >= headers | {"authorization", "content-type"}


async def test_allowed_origin_can_read_all_response_headers_of_api(ask: Ask):
    answers = [answer for _, told in OPERATIONS for answer in told["responses"].values()]
    sent = {name.lower() for answer in answers for name in answer["headers"]}
    assert {"location", "idempotency-replayed", "content-disposition"} <= sent

    answer = await ask(APP, "POST", "/message", [LISTED])

    assert listed(answer.headers["access-control-expose-headers"]) >= sent | {"allow"}
