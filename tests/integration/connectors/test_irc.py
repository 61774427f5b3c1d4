"""IRC against ngIRCd, and against a few lines of a server that can what ngIRCd cannot."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.standins.irc import IrcPlatform
from torana.testing.connectors import ConnectorContract


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncGenerator[IrcPlatform]:
    async with IrcPlatform(tmp_path) as platform:
        yield platform


class TestIrc(ConnectorContract):
    pass
