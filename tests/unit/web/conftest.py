"""A fake internet."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.standins.web import Internet, internet


@pytest.fixture
async def web() -> AsyncGenerator[Internet]:
    """A fake internet without encryption."""
    async with internet() as play:
        yield play
