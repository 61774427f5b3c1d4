"""The context windows that servers state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import web
from pydantic_ai.models import Model

from torana.models.context_windows import UNKNOWN_WINDOW, KnownWindow, find_window
from torana.models.providers import open_model
from torana.testing import ScriptedModel

UNKNOWN = KnownWindow(tokens=UNKNOWN_WINDOW, is_assumed=True)


class Server:
    """A server that answers each path with a JSON document, and others with 404."""

    def __init__(self) -> None:
        self.documents: Mapping[str, Any] = {}
        self.url = ""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path not in self.documents:
            return web.json_response({"error": "not found"}, status=404)
        return web.json_response(self.documents[request.path])


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.runner.cleanup()


@pytest.fixture
async def model(server: Server) -> AsyncIterator[Model]:
    opened = open_model(
        ["openai-chat:m"], environ={}, base_url=f"{server.url}/v1", api_key=None, builtin=ScriptedModel
    )
    async with opened:
        yield opened


def listed(**fields: Any) -> dict[str, Any]:
    return {
        "/v1/models": {
            "object": "list",
            "data": [{"id": "other", "max_model_len": 1_024}, {"id": "m", **fields}],
        }
    }


OLLAMA = listed(owned_by="library")


@pytest.mark.parametrize(
    ("documents", "window"),
    [
        pytest.param(
            listed(meta={"n_ctx": 2_048, "n_ctx_train": 8_192}), KnownWindow(tokens=2_048), id="llama.cpp"
        ),
        pytest.param(listed(max_model_len=16_384), KnownWindow(tokens=16_384), id="vLLM"),
        pytest.param(
            listed() | {"/props": {"default_generation_settings": {"n_ctx": 4_096}}},
            KnownWindow(tokens=4_096),
            id="old llama.cpp",
        ),
        pytest.param(
            listed()
            | {
                "/api/v0/models": {
                    "data": [{"id": "m", "loaded_context_length": 8_192, "max_context_length": 131_072}]
                }
            },
            KnownWindow(tokens=8_192),
            id="LM Studio",
        ),
        pytest.param(
            OLLAMA | {"/api/ps": {"models": [{"name": "m:latest", "context_length": 32_768}]}},
            KnownWindow(tokens=32_768),
            id="Ollama, loaded",
        ),
        pytest.param(
            OLLAMA | {"/api/show": {"parameters": 'stop "x"\r\n  num_ctx    8192 \r\n'}},
            KnownWindow(tokens=8_192),
            id="Ollama, configured",
        ),
        pytest.param(OLLAMA, KnownWindow(tokens=4_096, is_assumed=True), id="Ollama, default"),
        pytest.param({}, UNKNOWN, id="nothing"),
        pytest.param(
            listed(meta={"n_ctx": "many"}, context_length=-1, max_model_len=True), UNKNOWN, id="absurd"
        ),
        pytest.param(
            {"/v1/models": [1], "/props": {"default_generation_settings": []}}, UNKNOWN, id="misshapen"
        ),
    ],
)
async def test_window_is_read_from_the_server(
    server: Server, model: Model, documents: Mapping[str, Any], window: KnownWindow
) -> None:
    server.documents = documents

    assert await find_window(model) == window


async def test_unreachable_server_has_an_unknown_window(server: Server, model: Model) -> None:
    await server.runner.cleanup()

    assert await find_window(model) == UNKNOWN


@pytest.mark.parametrize(("name", "window"), [("openai:gpt-4o", 128_000), ("openai:gpt-5", 400_000)])
async def test_window_of_a_hosted_model_is_listed(name: str, window: int) -> None:
    environ = {"OPENAI_API_KEY": "sk-0123456789"}
    model = open_model([name], environ=environ, base_url=None, api_key=None, builtin=ScriptedModel)

    async with model:
        assert await find_window(model) == KnownWindow(tokens=window)


async def test_model_without_a_server_has_an_unknown_window() -> None:
    assert await find_window(ScriptedModel()) == UNKNOWN
