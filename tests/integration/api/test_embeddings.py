"""An embedding model of the settings, called over HTTP on OpenAI's stand-in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from torana.app import App
from torana.errors import ConfigInvalid
from torana.store.engine.tables import memories
from torana.testing import Fault, OpenAIStandIn

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

ANA = "/v1/users/ana/memories"
SETTINGS: dict[str, Any] = {"embedding_model": "openai:of-words", "model_api_key": "a-key-of-somebody"}


async def embedded(app: App) -> list[tuple[str, int]]:
    query = sa.select(memories.c.embedded_by, sa.func.length(memories.c.embedding))
    found = await app.database.run(lambda connection: connection.execute(query).all())
    return [(by, length) for by, length in found]


async def test_memory_vectors_are_stored_and_searched(start: Start):
    with OpenAIStandIn(api_key="a-key-of-somebody") as server:
        app, client = await start(**SETTINGS, model_base_url=server.url)
        for text in ("the blue kettle", "green tea"):
            assert (await client.post(ANA, json={"text": text})).status_code == 201

        found = (await client.get(ANA, params={"query": "a green kettle, green"})).json()["items"]

        assert await embedded(app) == [("openai:of-words", 4 * 256)] * 2
        assert found[0]["text"] == "green tea"
        assert 0 < found[0]["score"] < 2 / 60


async def test_failing_provider_leaves_memory_search_working(start: Start, caplog: pytest.LogCaptureFixture):
    with OpenAIStandIn(faults=[Fault(status=500, message="no")] * 9) as server:
        app, client = await start(**SETTINGS, model_base_url=server.url)

        assert (await client.post(ANA, json={"text": "green tea"})).status_code == 201
        found = (await client.get(ANA, params={"query": "tea"})).json()["items"]

    assert [item["text"] for item in found] == ["green tea"]
    assert await embedded(app) == [(None, None)]
    assert "memory_embedding_failed" in caplog.text
    assert "green" not in caplog.text
    assert "a-key-of-somebody" not in caplog.text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("embed", "is not an embedding model"),
        ("openai:", "is not an embedding model"),
        ("nobody:embed", "is not an embedding model"),
        ("openai:text-embedding-3-small", "needs a key: set OPENAI_API_KEY"),
    ],
)
async def test_unavailable_embedding_model_stops_start_with_error(start: Start, name: str, told: str):
    with pytest.raises(ConfigInvalid, match=told):
        await start(embedding_model=name)


async def test_provider_without_embeddings_stops_start_with_error(start: Start):
    with pytest.raises(ConfigInvalid, match=r"is not an embedding model|is not installed"):
        await start(embedding_model="anthropic:claude", model_api_key="a-key-of-somebody")
