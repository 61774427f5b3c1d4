"""The connector contract on the in-memory chat, which many other tests use."""

from __future__ import annotations

import pytest

from torana.connectors.base import Capabilities
from torana.testing.chat import Chat
from torana.testing.connectors import ConnectorContract, Platform


class TestChat(ConnectorContract):
    @pytest.fixture
    def platform(self) -> Platform:
        return Chat()


class TestAskedChat(ConnectorContract):
    @pytest.fixture
    def platform(self) -> Platform:
        return Chat(Capabilities(length=150, repeat="readable"))
