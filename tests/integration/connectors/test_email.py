"""The email connector against Dovecot, and an SMTP server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from tests.standins.email import Dovecot, MailServer
from torana.testing.connectors import ConnectorContract


@pytest.fixture(scope="module")
def dovecot() -> Generator[Dovecot]:
    server = Dovecot()
    yield server
    server.stop()


@pytest.fixture
async def platform(dovecot: Dovecot) -> AsyncGenerator[MailServer]:
    async with MailServer(dovecot) as platform:
        yield platform


class TestEmail(ConnectorContract):
    """The contract; the platform is the module's."""
