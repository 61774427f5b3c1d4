"""Discord, through discord.py, against a stand-in of its gateway and its HTTP API."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.standins.discord import DiscordStandIn

from torana.testing.connectors import ConnectorContract


@pytest.fixture
async def platform() -> AsyncGenerator[DiscordStandIn]:
    async with DiscordStandIn() as platform:
        yield platform


class TestDiscord(ConnectorContract):
    """What every connector promises."""
