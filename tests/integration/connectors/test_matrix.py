"""Matrix, against the real homeserver Synapse."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from tests.standins.matrix import MatrixPlatform, matrix_platform, synapse

from torana.testing.connectors import ConnectorContract


@pytest.fixture(scope="module")
def homeserver() -> Generator[Path]:
    with synapse() as path:
        yield path


@pytest.fixture
async def platform(homeserver: Path) -> AsyncGenerator[MatrixPlatform]:
    async with matrix_platform(homeserver) as platform:
        yield platform


class TestMatrix(ConnectorContract):
    pass
