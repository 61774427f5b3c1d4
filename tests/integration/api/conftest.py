"""The whole gateway in this process, with a scripted model."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from torana.app import App, build
from torana.config import load
from torana.store.engine.tables import sessions, turns
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """``app, client = await start(model, gateway_token="…")`` runs a gateway until the test ends.

    By default its model says yes to everything, and it has no limits: they are their own tests' matter.
    """
    async with AsyncExitStack() as stack:

        async def start(model: ScriptedModel | None = None, **settings: Any) -> Gateway:
            settings = {"rate_per_user": 0, "rate_global": 0, "data_dir": tmp_path / "data"} | settings
            environ = {f"TORANA_{name.upper()}": str(value) for name, value in settings.items()}
            loaded = load(flags={}, environ=environ, cwd=tmp_path, user_dir=tmp_path)
            loaded.settings.data_dir.mkdir(exist_ok=True)
            app = build(loaded, started=time.monotonic(), model=model or ScriptedModel(*["yes"] * 10_000))
            await app.start()
            stack.push_async_callback(app.close)
            transport = httpx2.ASGITransport(app=app.asgi)
            client = httpx2.AsyncClient(transport=transport, base_url="http://localhost:18789")
            return app, await stack.enter_async_context(client)

        yield start


@pytest.fixture
async def gateway(start: Callable[..., Awaitable[Gateway]]) -> Gateway:
    """An open gateway on a loopback address, without limits."""
    return await start()


@pytest.fixture
def client(gateway: Gateway) -> httpx2.AsyncClient:
    """A client of that gateway."""
    return gateway[1]


@pytest.fixture
def stored() -> Callable[[App], Awaitable[int]]:
    """``await stored(app)``: how many sessions and turns the database holds together."""

    def count(connection: sa.Connection) -> int:
        tables = (sessions, turns)
        counts = [sa.select(sa.func.count()).select_from(table) for table in tables]
        return sum(connection.execute(statement).scalar_one() for statement in counts)

    return lambda app: app.database.run(count)
