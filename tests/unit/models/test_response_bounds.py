"""Implausible usage is corrected, and every provider's client limits response sizes."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from decimal import Decimal
from http import cookiejar
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.usage import RequestUsage

from torana.errors import ModelResponseTooLarge
from torana.limits.prices import Prices, parse_price
from torana.models.event_weights import Pace
from torana.models.http_bounds import bound_http
from torana.models.providers import open_model
from torana.models.response_bounds import bound_responses, plausible
from torana.testing import ScriptedModel

KEYS = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "DEEPSEEK_API_KEY"), "key")

anything: st.SearchStrategy[Any] = st.one_of(
    st.integers(), st.floats(), st.decimals(), st.text(), st.none(), st.lists(st.integers()), st.booleans()
)


@given(
    numbers=st.fixed_dictionaries(
        dict.fromkeys(("input_tokens", "output_tokens", "cache_read_tokens"), anything)
    ),
    details=st.dictionaries(st.text(), anything),
    cost=anything,
)
def test_any_usage_is_made_chargeable(numbers: dict[str, Any], details: dict[str, Any], cost: Any) -> None:
    used = plausible(RequestUsage(**numbers, details=details, cost=cost))

    for number in (used.input_tokens, used.output_tokens, used.cache_read_tokens, *used.details.values()):
        assert type(number) is int
        assert 0 <= number <= 100_000_000
    assert used.cost is None or 0 <= used.cost <= 10_000
    assert plausible(used) == used
    dearest = parse_price("m 999999 999999")
    assert Prices(models=["m"], own=[dearest]).most(used.input_tokens, used.output_tokens) < 2**62


def test_plausible_usage_is_unchanged() -> None:
    used = RequestUsage(
        input_tokens=1_000_000, output_tokens=5, cache_read_tokens=3, details={"a": 1}, cost=Decimal("0.25")
    )

    assert plausible(used) == used


@pytest.mark.parametrize(
    "name",
    [
        "openai:gpt-5",
        "openai-chat:gpt-5",
        "anthropic:claude-sonnet-4-5",
        "google:gemini-3-pro",
        "ollama:m",
        "vllm:m",
        "deepseek:deepseek-chat",
        "openrouter:m/m",
    ],
)
async def test_clients_of_every_provider_are_bounded_also_after_reopening(name: str) -> None:
    model = open_model(
        [name],
        environ=KEYS | {"OPENROUTER_API_KEY": "key"},
        base_url=None,
        api_key=None,
        builtin=ScriptedModel,
    )
    for _ in range(2):
        async with model:
            assert [hook.__name__ for hook in _client_of(model).event_hooks["response"]][-1:] == ["bound"]


def _client_of(model: Model) -> Any:
    assert model.provider is not None
    return vars(model.provider)["_own_http_client"]


class Owner:
    """A provider with only an HTTP client."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._http_client_factory = make
        self._own_http_client = make()


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(("size", "status"), [(40, 200), (41, 200), (100_000, 400)])
async def test_clients_of_both_libraries_are_bounded(library: Any, size: int, status: int) -> None:
    def answer(_: object) -> Any:
        return library.Response(status, content=pieces(size))

    provider: Any = Owner(lambda: library.AsyncClient(transport=library.MockTransport(answer)))
    bound_http(provider, max_bytes=10)

    async def read() -> int:
        async with provider._own_http_client as client:
            return len((await client.get("http://localhost")).content)

    if size == 41:
        with pytest.raises(ModelResponseTooLarge):
            await read()
    else:
        assert await read() == min(size, 65_536)


async def pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size):
        yield b"x"


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("status", [200, 400])
async def test_parameters_of_the_content_type_are_not_parsed(library: Any, status: int) -> None:
    """The standard library's parser takes seconds for them."""

    def answer(_: object) -> Any:
        kind = 'Text/Event-Stream ;a="' + ";" * 90_000
        return library.Response(status, headers={"Content-Type": kind}, content=pieces(3))

    provider: Any = Owner(lambda: library.AsyncClient(transport=library.MockTransport(answer)))
    bound_http(provider, max_bytes=10)

    async with provider._own_http_client as client:
        response = await client.get("http://localhost")

    assert response.headers["content-type"] == "text/event-stream"
    assert response.text == "xxx"


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_connection_does_not_keep_the_context_of_a_turn(library: Any) -> None:
    """The event loop keeps the context in which a connection was opened."""
    turn: ContextVar[str] = ContextVar("turn")
    turn.set("a turn with long messages")
    seen: list[str | None] = []

    def answer(_: object) -> Any:
        seen.append(turn.get(None))
        return library.Response(200, content=pieces(3))

    provider: Any = Owner(lambda: library.AsyncClient(transport=library.MockTransport(answer)))
    bound_http(provider, max_bytes=10)

    async with provider._own_http_client as client:
        await client.get("http://localhost")

    assert seen == [None]


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_cookies_are_neither_parsed_nor_sent_back(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request compares all cookies, and a server can send thousands with each response."""
    parsed: list[object] = []
    monkeypatch.setattr(cookiejar, "parse_ns_headers", parsed.append)
    requests: list[Any] = []

    def answer(request: Any) -> Any:
        requests.append(request)
        return library.Response(200, headers=[("Set-Cookie", f"a{n}=b") for n in range(3)], content=pieces(3))

    provider: Any = Owner(lambda: library.AsyncClient(transport=library.MockTransport(answer)))
    bound_http(provider, max_bytes=10)

    async with provider._own_http_client as client:
        for _ in range(2):
            await client.get("http://localhost")

    assert parsed == []
    assert [request.headers.get("Cookie") for request in requests] == [None, None]


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "x-goog-api-key"])
@pytest.mark.parametrize("status", [200, 401, 500])
async def test_key_in_a_response_is_masked(library: Any, header: str, status: int) -> None:
    async def echo(size: int, key: str) -> AsyncIterator[bytes]:
        said = f"the key {key} is not valid".encode()
        for start in range(0, len(said), size):
            yield said[start : start + size]

    def answer(request: Any) -> Any:
        key = request.headers[header].removeprefix("Bearer ")
        return library.Response(status, content=echo(100 if status == 200 else 3, key))

    provider: Any = Owner(lambda: library.AsyncClient(transport=library.MockTransport(answer)))
    bound_http(provider, max_bytes=1_000)

    async with provider._own_http_client as client:
        value = f"{'Bearer ' if header == 'Authorization' else ''}my/own+pass.phrase"
        response = await client.get("http://localhost", headers={header: value})

    assert response.text == "the key ******** is not valid"


async def test_key_at_the_end_of_a_cut_error_is_masked() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 65_530 + b"a-long-secret-key" * 2

    def answer(_: object) -> httpx.Response:
        return httpx.Response(400, content=body())

    provider: Any = Owner(lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    bound_http(provider, max_bytes=10)

    async with provider._own_http_client as client:
        response = await client.get("http://localhost", headers={"x-api-key": "a-long-secret-key"})

    assert response.text[65_530:] == "******"


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 5_000, 1_000_000])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_values_are_counted_for_each_event(blank: bytes, size: int, kind: str) -> None:
    events = [b'data: {"schema": [' + b"1," * number + b"1]}" + blank for number in (9_000, 9_000, 3, 12_000)]

    assert await read_events(events[:3], size=size, kind=kind) == b"".join(events[:3])
    with pytest.raises(ModelResponseTooLarge, match="JSON values"):
        await read_events(events, size=size, kind=kind)


async def read_events(
    events: list[bytes],
    *,
    size: int = 5_000,
    kind: str = "text/event-stream",
    path: str = "/chat/completions",
    uses_sdk: bool = True,
) -> bytes:
    """Read a stream of events that arrives in pieces."""

    async def body() -> AsyncIterator[bytes]:
        whole = b"".join(events)
        for start in range(0, len(whole), size):
            yield whole[start : start + size]

    def answer(_: object) -> httpx.Response:
        return httpx.Response(200, content=body(), headers={"content-type": kind})

    provider: Any = Owner(lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    bound_http(provider, max_bytes=1_000_000, uses_sdk=uses_sdk)
    async with provider._own_http_client as client:
        return (await client.get(f"http://localhost{path}")).content


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


ECHO: dict[str, Any] = {
    "tools": [{"type": "function", "name": "f", "parameters": {"enum": ["x"] * 50}}] * 120,
    "output": [{"type": "function_call", "arguments": "{}"}] * 128,
}
RATINGS: dict[str, Any] = {
    "candidates": [{"content": {"parts": [{"text": "a"}]}, "safetyRatings": [{"a": "b"}] * 5}]
}
ITEM: dict[str, Any] = {}
HEAVY: dict[str, list[bytes]] = {
    "items": [event({"response": {"output": [ITEM] * 900}})],
    "numbers": [event({"response": {"output": [1] * 5_200}})],
    "items of several lists": [event({"content": [{"annotations": [ITEM, ITEM]}] * 300})],
    "fields": [event({"variables": {str(number): 1 for number in range(5_200)}})],
    "tools": [event({"response": {"tools": [ITEM] * 1_100}})],
    "an event on several lines": [event({"output": [ITEM] * 900}).replace(b" {}", b"\ndata:{}")],
    "lines of texts": [b"data: {}\n\n\x0b" + event({"output": [ITEM] * 900})],
    "lines of texts in a value": [b'data: {"a": "\xe2\x80\xa8", ' + event({"output": [ITEM] * 900})[7:]],
}


@pytest.mark.parametrize("attack", HEAVY)
async def test_values_that_an_sdk_compares_with_models_are_limited(
    attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torana.models.event_weights._WEIGHT_PER_SECOND", 1e9)
    with pytest.raises(ModelResponseTooLarge, match="JSON values"):
        await read_events(HEAVY[attack])


@pytest.mark.parametrize(
    ("repeated", "times"), [(RATINGS, 1_000), ({"choices": [{"delta": {"content": "[1,"}}]}, 5_000)]
)
async def test_ordinary_events_are_not_limited(repeated: dict[str, Any], times: int) -> None:
    events = [event(repeated)] * times

    assert await read_events(events) == b"".join(events)


async def test_response_with_as_many_tools_and_calls_as_providers_allow_is_not_limited() -> None:
    await read_events([event({"type": "response.completed", "response": ECHO})], path="/v1/responses")


@pytest.mark.parametrize(("item", "times"), [({}, 83), ({"type": "message"}, 241)])
async def test_each_object_in_a_list_of_the_responses_api_is_heavy(
    item: dict[str, str], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torana.models.event_weights._WEIGHT_PER_SECOND", 1e9)
    most, more = (
        event({"type": "response.created", "response": {"output": [item] * number}})
        for number in (times, times + 1)
    )

    assert await read_events([most], path="/v1/responses") == most
    with pytest.raises(ModelResponseTooLarge, match="JSON values"):
        await read_events([more], path="/v1/responses")
    assert await read_events([more]) == more


async def test_tools_that_a_response_repeats_often_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = AsyncMock()
    monkeypatch.setattr("torana.models.event_weights.Pace.wait", wait)
    repeated = event({"type": "response.in_progress", "response": {"tools": [ITEM] * 128}})

    await read_events([repeated] * 5, path="/v1/responses")

    light, heavy = 3 * 2, 2 * 128 * 20
    assert sum(call.args[0] for call in wait.await_args_list) == light + heavy


@pytest.mark.parametrize("before", ["x\n\n", "\x0b", "{}\n", "\u2028"])
async def test_events_after_other_lines_are_refused(before: str) -> None:
    """The SDKs read them, too."""
    with pytest.raises(ModelResponseTooLarge, match="neither"):
        await read_events([before.encode(), event({"output": [ITEM]})])


async def test_line_ends_of_two_characters_do_not_delay_an_event() -> None:
    """The SDKs wait for the whole blank line."""

    sent = [b"data: 1\r\n\r\n", b"data: 2\r\n\r\n"]

    assert await passed_on(sent) == sent


async def passed_on(sent: list[bytes]) -> list[bytes]:
    """Return the pieces in which the pieces of a stream are passed on."""

    async def body() -> AsyncIterator[bytes]:
        for piece in sent:
            yield piece

    def answer(_: object) -> httpx.Response:
        return httpx.Response(200, content=body())

    provider: Any = Owner(lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    bound_http(provider, max_bytes=1_000)
    headers = {"x-api-key": "a-long-secret-key"}
    async with (
        provider._own_http_client as client,
        client.stream("GET", "http://localhost", headers=headers) as response,
    ):
        return [piece async for piece in response.aiter_bytes()]


async def test_heavy_events_of_all_responses_are_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 1_000.0, list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("torana.models.event_weights.time", SimpleNamespace(monotonic=lambda: now))
    pace = Pace()
    monkeypatch.setattr("torana.models.event_weights.asyncio", SimpleNamespace(sleep=sleep))
    for weight in (1_000, 500, 500):
        await pace.wait(weight)
    now += 10
    await pace.wait(1_000)

    assert waits == pytest.approx([0, 0.1, 0.2, 0])


@pytest.mark.parametrize(("begin", "end"), [(b"data: ", b"\n\n"), (b'"', b'"')], ids=["event", "document"])
async def test_few_long_events_of_all_responses_are_read_at_once(begin: bytes, end: bytes) -> None:
    asked, release = 0, asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        nonlocal asked
        yield begin + b"x" * 70_000
        asked += 1
        await release.wait()
        yield end

    def answer(_: object) -> httpx.Response:
        return httpx.Response(200, content=body())

    async def read() -> int:
        return len((await client.get("http://localhost")).content)

    provider: Any = Owner(lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    bound_http(provider, max_bytes=1_000_000, uses_sdk=False)
    async with provider._own_http_client as client:
        reading = [asyncio.create_task(read()) for _ in range(10)]
        for limit in (4, 5):
            for _ in range(500):
                await asyncio.sleep(0)
            assert asked == limit
            reading[0].cancel()  # frees its place
        release.set()
        read_bytes = await asyncio.gather(*reading[1:])

    assert read_bytes == [70_000 + len(begin) + len(end)] * 9


@pytest.mark.parametrize("uses_sdk", [True, False])
@pytest.mark.parametrize("end", [b"\n\n", b""])
async def test_bytes_of_long_events_are_paced(
    uses_sdk: bool, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = AsyncMock()
    monkeypatch.setattr("torana.models.event_weights.Pace.wait", wait)

    await read_events([b"data: x\n\n", b"data: " + b"x" * 100_000 + end], uses_sdk=uses_sdk)

    assert sum(call.args[0] for call in wait.await_args_list) == 100_000 // 2_048


async def test_stream_is_freed_without_a_collection() -> None:
    model = ScriptedModel("a" * 1_000)
    bound_responses(model, max_bytes=1_000_000)
    gc.disable()
    try:
        async with model.request_stream([], None, ModelRequestParameters()) as stream:
            assert [event async for event in stream]
            freed = weakref.ref(stream)
        del stream
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n", "\x0b", "\u2028\n\n"])
@pytest.mark.parametrize("line", ["{},{},", "data:{},{},", "other: x"])
async def test_lines_that_are_no_fields_are_limited(line: str, ends: str) -> None:
    """Google's SDK joins them to a document over the ends of events."""
    events = [b"data: {}\n\n", b'{"candidates":[\n\n', *[(line + ends).encode()] * 20_000]

    with pytest.raises(ModelResponseTooLarge):
        await read_events(events)


async def test_field_without_a_space_is_ordinary() -> None:
    events = [b'data:{"choices": []}\n\n'] * 5_000

    assert await read_events(events) == b"".join(events)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
async def test_lines_of_an_event_are_limited(end: bytes) -> None:
    assert await read_events([(b"data:" + end) * 400, end])
    with pytest.raises(ModelResponseTooLarge):
        await read_events([(b"data:" + end) * 1_100, end])


async def test_other_tasks_run_between_a_few_short_events() -> None:
    pieces = await passed_on([b"data: {}\n\n" * 100])

    assert max(piece.count(b"data") for piece in pieces) == 8
    assert b"".join(pieces) == b"data: {}\n\n" * 100


@pytest.mark.parametrize(("path", "weight"), [("/v1/responses", 200), ("/chat/completions", 0)])
async def test_empty_events_of_the_responses_api_are_paced(
    path: str, weight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = AsyncMock()
    monkeypatch.setattr("torana.models.event_weights.Pace.wait", wait)

    await read_events([b"data: {}\n\n"] * 100, path=path)

    assert sum(call.args[0] for call in wait.await_args_list) == weight


async def test_events_are_passed_on_whole() -> None:
    """A key that two pieces of the provider contain is therefore masked."""

    sent = [b"data: {}\n\ndata: the key is a-long-", b"secret-key\n", b"\n"]

    assert await passed_on(sent) == [b"data: {}\n\n", b"data: the key is ********\n\n"]


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(
    ("document", "refused"),
    [
        (b'{"data": [' + b"0.5," * 262_144 + b"1]}", False),
        (b'{"data": [' + b'{"id": "a, [b]"},' * 4_000 + b"{}]}", False),
        (b'{"text": "' + b"[{" * 20_000 + b'"}', False),
        (b" \n[" + b"1," * 300_000 + b"1]", True),
        (b"[" + b"[]," * 12_000 + b"[]]", True),
        (b"\xef\xbb\xbf[" + b"[]," * 12_000 + b"[]]", True),
        (("[" + "[]," * 12_000 + "[]]").encode("utf-16"), True),
        (("[" + "[]," * 12_000 + "[]]").encode("utf-16-le"), True),
    ],
)
async def test_values_of_a_document_are_counted_before_it_is_parsed(
    library: Any, document: bytes, refused: bool
) -> None:
    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(document), 5_000):
            yield document[start : start + 5_000]

    def answer(_: object) -> Any:
        return library.Response(200, content=body(), headers={"content-type": "application/json"})

    provider: Any = Owner(lambda: library.AsyncClient(transport=library.MockTransport(answer)))
    bound_http(provider, max_bytes=1_000_000)

    async with provider._own_http_client as client:
        if refused:
            with pytest.raises(ModelResponseTooLarge, match=r"JSON values|not UTF-8"):
                await client.get("http://localhost")
        else:
            assert (await client.get("http://localhost")).content == document


async def test_other_tasks_run_while_a_fast_stream_is_read() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n" * 6_000

    def answer(_: object) -> httpx.Response:
        return httpx.Response(200, content=body(), headers={"content-type": "text/event-stream"})

    async def other() -> None:
        nonlocal ran
        while True:
            ran += 1
            await asyncio.sleep(0)

    ran = 0
    provider: Any = Owner(lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    bound_http(provider, max_bytes=1_000_000)
    task = asyncio.create_task(other())
    async with provider._own_http_client as client, client.stream("GET", "http://localhost") as response:
        before = ran
        async for _ in response.aiter_bytes():
            pass
    task.cancel()

    assert ran - before > 50
