"""Implausible usage is corrected, and every provider's client limits response sizes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any

import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from torana.errors import ModelResponseTooLarge
from torana.limits.prices import Prices, parse_price
from torana.models.http_bounds import bound_http
from torana.models.providers import open_model
from torana.models.response_bounds import plausible
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


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 5_000])
async def test_values_are_counted_for_each_event(blank: bytes, size: int) -> None:
    events = [b"data: [" + b"1," * number + b"1]" + blank for number in (9_000, 9_000, 3, 12_000)]

    async def body(events: list[bytes]) -> AsyncIterator[bytes]:
        whole = b"".join(events)
        for start in range(0, len(whole), size):
            yield whole[start : start + size]

    async def read(events: list[bytes]) -> bytes:
        def answer(_: object) -> httpx.Response:
            return httpx.Response(200, content=body(events), headers={"content-type": "text/event-stream"})

        provider: Any = Owner(lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
        bound_http(provider, max_bytes=1_000_000)
        async with provider._own_http_client as client:
            return (await client.get("http://localhost")).content

    assert await read(events[:3]) == b"".join(events[:3])
    with pytest.raises(ModelResponseTooLarge, match="JSON values"):
        await read(events)


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
