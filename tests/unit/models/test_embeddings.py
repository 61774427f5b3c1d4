"""Embeddings of OpenAI-compatible servers, and their errors."""

from __future__ import annotations

import pytest

from torana.errors import ModelFailed
from torana.models.embeddings import ProviderEmbedder
from torana.models.providers import open_embedder
from torana.testing import Fault, OpenAIStandIn


def embedder(url: str) -> ProviderEmbedder:
    return open_embedder("openai:of-words", models=["openai:m"], environ={}, base_url=url, api_key="a-key")


async def test_each_text_gets_its_vector() -> None:
    with OpenAIStandIn() as server:
        async with embedder(server.url) as opened:
            tea, kettle, again = await opened.vectors(["green tea", "a kettle", "green tea"], query=False)

    assert list(tea) == list(again)
    assert list(tea) != list(kettle)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "the key was refused by"),
        (404, 'does not have the model "of-words"'),
        (429, "rate limited by"),
        (500, "answered 500: no"),
    ],
)
async def test_error_of_the_server_is_explained(status: int, told: str) -> None:
    with OpenAIStandIn(faults=[Fault(status=status, message="no")]) as server:
        async with embedder(server.url) as opened:
            with pytest.raises(ModelFailed, match=told):
                await opened.vectors(["tea"], query=True)


async def test_refused_connection_is_explained() -> None:
    async with embedder("http://127.0.0.1:1/v1") as opened:
        with pytest.raises(ModelFailed, match="connection refused"):
            await opened.vectors(["tea"], query=True)
