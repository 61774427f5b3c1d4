"""Any input gets a clear problem, and the gateway stores nothing of a refused request."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torana.app import App

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]
Stored = Callable[[App], Awaitable[int]]

ROOT = "http://localhost:18789"
JSON = {"Content-Type": "application/json"}
EMOJI = "\\ud83d\\ude00"  # one character of four bytes, escaped as a pair
MEMBERS = {"type", "title", "status", "detail", "instance", "error", "code", "requestId"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(start_shared: Start) -> Gateway:
    """A gateway for the whole module, which refuses nearly all requests."""
    return await start_shared()


@pytest_asyncio.fixture(loop_scope="module")
async def stored(gateway: Gateway, stored: Stored) -> Stored:
    """``await stored(app)`` returns the number of sessions and turns that this test has added."""
    before = await stored(gateway[0])

    async def count_added(app: App) -> int:
        return await stored(app) - before

    return count_added


def check_problem(answer: httpx2.Response) -> dict[str, Any]:
    """Return the problem of a response, after a check of the fields that every problem has."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    problem = answer.json()
    assert set(problem) >= MEMBERS
    assert problem["status"] == answer.status_code
    assert problem["requestId"] == answer.headers["x-request-id"]
    assert problem["detail"].strip()
    assert "Traceback" not in answer.text
    return problem


def body(**fields: Any) -> bytes:
    return json.dumps({"content": "hi"} | fields).encode()


NOT_JSON = {
    "nothing": b"",
    "a word": b"hello",
    "an open object": b'{"content": "hi"',
    "an array": b'["content"]',
    "null": b"null",
    "a string": b'"hi"',
    "a number": b"1",
    "two documents": b'{"content": "hi"}{}',
    "single quotes": b"{'content': 'hi'}",
    "a comma too much": b'{"content": "hi",}',
    "NaN": b'{"content": "hi", "x": NaN}',
    "-Infinity": b'{"content": "hi", "x": [-Infinity]}',
    "invalid UTF-8": b'{"content": "\xff\xfe"}',
    "UTF-16": '{"content": "hi"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"content": "hi"}',
    "Latin-1": b'{"content": "\xe9t\xe9"}',
    "an unescaped NUL": b'{"content": "a\0b"}',
    "an unescaped line end": b'{"content": "a\nb"}',
    "deep arrays": b'{"content":' + b"[" * 100_000,
    "deep objects": b'{"content":' + b'{"a":' * 40_000,
    "deep but whole": b'{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a form": b"content=hi",
}
CONTENT = {
    "missing": b"{}",
    "null": body(content=None),
    "a number": body(content=1),
    "a boolean": body(content=True),
    "an array": body(content=["hi"]),
    "an object": body(content={"text": "hi"}),
    "empty": body(content=""),
    "spaces": body(content=" \t\r\n"),
    "other blanks": body(content="\u2003\u00a0\u3000"),
    "of another case": b'{"Content": "hi"}',
    "the last of two": b'{"content": "hi", "content": null}',
}
TEXT = {
    "half a pair": b'{"content": "a\\ud83d"}',
    "the other half": b'{"content": "\\ude00a"}',
    "a pair the wrong way round": b'{"content": "\\ude00\\ud83d"}',
    "NUL": b'{"content": "a\\u0000b"}',
    "NUL in the channel": body(channelId="a\0"),
    "half a pair in the user": b'{"content": "hi", "userId": "\\ud800"}',
    "NUL in an unknown field": body(unknown="\0"),
    "half a pair in a field's name, too": b'{"content": "hi", "\\ud800": "\\ud800"}',
}
TOO_LONG = {
    "letters": body(content="x" * 10_001),
    "escaped emoji": f'{{"content": "{EMOJI * 10_001}"}}'.encode(),
    "blanks": body(content=" " * 10_001),
}


@pytest.mark.parametrize("raw", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_body_that_is_no_json_object_is_refused(gateway: Gateway, stored: Stored, raw: bytes):
    app, client = gateway
    problem = check_problem(await client.post("/message", content=raw, headers=JSON))
    assert (problem["status"], problem["error"]) == (400, "Bad request")
    assert problem["code"] in ("invalid_json", "invalid_content")
    assert await stored(app) == 0


@pytest.mark.parametrize("raw", CONTENT.values(), ids=CONTENT.keys())
async def test_blank_or_non_string_content_is_refused(gateway: Gateway, stored: Stored, raw: bytes):
    app, client = gateway
    problem = check_problem(await client.post("/message", content=raw, headers=JSON))
    assert (problem["status"], problem["code"]) == (400, "invalid_content")
    assert problem["error"] == "Missing or invalid content field"
    assert [fault["pointer"] for fault in problem["errors"]] == ["/content"]
    assert await stored(app) == 0


@pytest.mark.parametrize("raw", TEXT.values(), ids=TEXT.keys())
async def test_text_that_cannot_be_stored_is_refused(gateway: Gateway, stored: Stored, raw: bytes):
    app, client = gateway
    problem = check_problem(await client.post("/message", content=raw, headers=JSON))
    assert (problem["status"], problem["code"]) == (400, "invalid_text")
    assert problem["errors"][0]["pointer"].startswith("/")
    assert await stored(app) == 0


@pytest.mark.parametrize("raw", TOO_LONG.values(), ids=TOO_LONG.keys())
async def test_content_over_10_000_characters_is_refused(gateway: Gateway, stored: Stored, raw: bytes):
    app, client = gateway
    problem = check_problem(await client.post("/message", content=raw, headers=JSON))
    assert (problem["status"], problem["error"], problem["code"]) == (
        413,
        "Payload too large",
        "content_too_long",
    )
    assert "10,000" in problem["detail"]
    assert await stored(app) == 0


@pytest.mark.parametrize("content", ["x" * 10_000, EMOJI * 10_000, "\\u00e4" * 10_000])
async def test_content_of_10_000_characters_is_accepted_in_any_escaping(
    client: httpx2.AsyncClient, content: str
):
    raw = f'{{"content": "{content}"}}'.encode()
    assert (await client.post("/message", content=raw, headers=JSON)).status_code == 200


@pytest.mark.parametrize(
    "value", ["x" * 257, "x" * 300, 10**300, 1.5, 1e400, True, False, [], ["a"], {}, {"id": 1}]
)
@pytest.mark.parametrize("name", ["channelId", "userId"])
async def test_id_of_wrong_type_or_size_is_refused_with_its_field(
    gateway: Gateway, stored: Stored, name: str, value: object
):
    app, client = gateway
    raw = json.dumps({"content": "hi", name: value}).replace("Infinity", "1e400").encode()
    problem = check_problem(await client.post("/message", content=raw, headers=JSON))
    assert (problem["status"], problem["error"], problem["code"]) == (400, "Bad request", "invalid_field")
    assert [fault["pointer"] for fault in problem["errors"]] == [f"/{name}"]
    assert await stored(app) == 0


@pytest.mark.parametrize(
    "media_type",
    [
        None,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "text/json",
        "json",
        ";",
    ],
)
async def test_unsupported_content_type_is_refused_with_example(
    gateway: Gateway, stored: Stored, media_type: str | None
):
    app, client = gateway
    headers = {} if media_type is None else {"Content-Type": media_type}
    problem = check_problem(await client.post("/message", content=body(), headers=headers))
    assert (problem["status"], problem["code"]) == (415, "unsupported_media_type")
    assert "curl --json" in problem["detail"]
    assert await stored(app) == 0


@pytest.mark.parametrize("accept", ["text/html", "image/*", "application/json;q=0"])
async def test_unacceptable_media_type_is_406(gateway: Gateway, stored: Stored, accept: str):
    app, client = gateway
    problem = check_problem(await client.post("/message", content=body(), headers=JSON | {"Accept": accept}))
    assert (problem["status"], problem["code"]) == (406, "not_acceptable")
    assert await stored(app) == 0


@pytest.mark.parametrize("extra", [1, 10_000_000])
async def test_body_over_limit_is_413(gateway: Gateway, stored: Stored, extra: int):
    app, client = gateway
    raw = body().ljust(256 * 1024 + extra)
    problem = check_problem(await client.post("/message", content=raw, headers=JSON))
    assert (problem["status"], problem["code"]) == (413, "body_too_large")
    assert await stored(app) == 0


async def test_body_of_exact_limit_is_accepted(client: httpx2.AsyncClient):
    answer = await client.post("/message", content=body().ljust(256 * 1024), headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/health/",
        "/skills/",
        "/message/",
        "//",
        "//health",
        "/api//health",
        "/api/api/health",
        "/Health",
        "/health%2F",
        "/%2Fhealth",
        "/health%00",
        "/%ff%fe",
        "/" + "x" * 60_000,
        "/v1/turns/",
        "/v1/turns/a%2Fb",
        "/v1/turns/..%2f..%2fetc",
        "/v1/turns/turn_x",
        "/v1/turns/%00",
        "/v1/turns/" + "x" * 101,
        "/v1/turns/" + quote("😀'\";--"),
        "/openapi.json/",
        "/docs/x",
        "/favicon.ico",
    ],
    ids=lambda path: path[:30],
)
async def test_unknown_path_is_404(client: httpx2.AsyncClient, path: str):
    problem = check_problem(await client.get(f"{ROOT}{path}"))
    assert (problem["status"], problem["error"], problem["code"]) == (404, "Not found", "not_found")
    assert len(problem["detail"]) < 300


async def test_encoded_slash_equals_slash(client: httpx2.AsyncClient):
    assert (await client.get("/api%2Fhealth")).status_code == 200


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/health", "GET, HEAD, OPTIONS"),
        ("/skills", "GET, HEAD, OPTIONS"),
        ("/message", "OPTIONS, POST"),
        ("/v1/turns/turn_x", "GET, HEAD, OPTIONS"),
        ("/openapi.json", "GET, HEAD, OPTIONS"),
        ("/v1/turns/turn_x/events", "GET, OPTIONS"),
        ("/v1/sessions/ses_x/export", "GET, OPTIONS"),
        ("/v1/users/ana/export", "GET, OPTIONS"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"])
async def test_unsupported_method_is_405_with_allow_header(
    client: httpx2.AsyncClient, path: str, allow: str, method: str
):
    answer = await client.request(method, path)
    problem = check_problem(answer)
    assert (problem["status"], problem["code"], answer.headers["allow"]) == (405, "method_not_allowed", allow)
    options = await client.options(path)
    assert (options.status_code, options.headers["allow"], options.content) == (204, allow, b"")


@pytest.mark.parametrize(
    "path", ["/v1/turns/turn_x/events", "/v1/sessions/ses_x/export", "/api/v1/users/ana/export"]
)
async def test_head_of_streamed_resource_is_405(client: httpx2.AsyncClient, path: str):
    answer = await client.head(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, OPTIONS")


async def test_get_and_head_of_message_are_405(client: httpx2.AsyncClient):
    assert [(await client.request(method, "/message")).status_code for method in ("GET", "HEAD")] == [405, 405]


@pytest.mark.parametrize("path", ["/health", "/skills", "/", "/docs", "/openapi.json"])
async def test_head_has_headers_of_get_and_no_body(client: httpx2.AsyncClient, path: str):
    got, headed = await client.get(path), await client.head(path)
    assert (headed.status_code, headed.content) == (200, b"")
    assert headed.headers["content-type"] == got.headers["content-type"]


# --- arbitrary bytes

_TEXT = st.text(st.characters())  # halves of surrogate pairs among them
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(("content", "channelId", "userId"), _VALUES))
_BODIES = (
    st.binary(max_size=400)
    | _VALUES.map(lambda value: json.dumps(value).encode())
    | _FIELDS.map(lambda value: json.dumps(value).encode())
)
_HEADER = st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=60).map(
    lambda text: text.encode("latin-1")
)
_NAMES = [
    b"Accept",
    b"Authorization",
    b"Connection",
    b"Content-Encoding",
    b"Content-Type",
    b"Host",
    b"If-None-Match",
    b"Origin",
    b"Sec-Fetch-Site",
    b"X-Forwarded-For",
    b"Access-Control-Request-Method",
]
_HEADERS = st.lists(st.tuples(st.sampled_from(_NAMES), _HEADER), max_size=4)
_PATHS = st.sampled_from(
    ["/message", "/api/message", "/skills", "/health", "/v1/turns/x", "/", "/api", "/nope"]
)
#: A fixture of a test function lives for all of its examples; each example is one request.
_ONE_GATEWAY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_clean(answer: httpx2.Response) -> bool:
    if answer.status_code in (200, 204, 304, 307):
        return True
    return bool(check_problem(answer)) and answer.status_code < 500


@_ONE_GATEWAY
@given(raw=_BODIES)
async def test_any_body_gets_clean_answer(gateway: Gateway, stored: Stored, raw: bytes):
    app, client = gateway
    before = await stored(app)
    answer = await client.post("/message", content=raw, headers=JSON)
    assert is_clean(answer)
    if answer.status_code != 200:
        assert await stored(app) == before


@_ONE_GATEWAY
@given(method=st.sampled_from(["GET", "POST", "OPTIONS", "HEAD"]), path=_PATHS, headers=_HEADERS)
async def test_any_headers_get_clean_answer(
    client: httpx2.AsyncClient, method: str, path: str, headers: list[tuple[bytes, bytes]]
):
    answer = await client.request(method, path, headers=headers, content=body())
    if method != "HEAD":
        assert is_clean(answer)
    assert answer.status_code < 500


@_ONE_GATEWAY
@given(path=st.text(max_size=40))
async def test_any_path_gets_clean_answer(client: httpx2.AsyncClient, path: str):
    assert is_clean(await client.get(f"{ROOT}/{quote(path, safe='/%')}"))


@pytest.mark.parametrize("path", ["/message", "/v1/tokens"])
async def test_body_of_many_values_is_refused(gateway: Gateway, stored: Stored, path: str):
    app, client = gateway
    raw = b'{"content": "hello", "more": [' + b"0," * 80_000 + b"0]}"
    problem = check_problem(await client.post(path, content=raw, headers=JSON))
    assert (problem["status"], problem["code"]) == (400, "invalid_json")
    assert "more than 10,000 JSON values" in problem["detail"]
    assert await stored(app) == 0
