"""XMPP against Prosody."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.standins.xmpp import XmppPlatform
from torana.testing.connectors import ConnectorContract


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncGenerator[XmppPlatform]:
    async with XmppPlatform(tmp_path) as platform:
        yield platform


class TestXmpp(ConnectorContract):
    pass
