"""The whole gateway in this process, with a scripted model."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import sqlalchemy as sa
from tests.standins.addresses import ManyAddresses

from torana.app import App, build
from torana.config import load
from torana.store.engine.tables import sessions, turns
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]


@asynccontextmanager
async def _gateways(directory: Path, empty_database: Path) -> AsyncGenerator[Start]:
    async with AsyncExitStack() as stack:

        async def start(model: ScriptedModel | None = None, **settings: Any) -> Gateway:
            settings = {"rate_per_user": 0, "rate_global": 0, "data_dir": directory / "data"} | settings
            environ = {f"TORANA_{name.upper()}": str(value) for name, value in settings.items()}
            loaded = load(flags={}, environ=environ, cwd=directory, user_dir=directory)
            data_dir = loaded.settings.data_dir
            data_dir.mkdir(exist_ok=True)
            if not (data_dir / "torana.db").exists():
                shutil.copy(empty_database, data_dir)
            app = build(loaded, started=time.monotonic(), model=model or ScriptedModel(*["yes"] * 1_000))
            await app.start()
            stack.push_async_callback(app.close)
            transport = httpx2.ASGITransport(app=ManyAddresses(app.asgi))
            client = httpx2.AsyncClient(transport=transport, base_url="http://localhost:18789")
            return app, await stack.enter_async_context(client)

        yield start


@pytest.fixture
async def start(tmp_path: Path, empty_database: Path) -> AsyncGenerator[Start]:
    """``app, client = await start(model, gateway_token="…")`` runs a gateway until the test ends.

    By default its model answers "yes" to everything, and it has no limits: the tests of limits set them.
    """
    async with _gateways(tmp_path, empty_database) as start:
        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def start_shared(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> AsyncGenerator[Start]:
    """Like ``start``, for gateways of a whole module. The tests run in the module's event loop."""
    async with _gateways(tmp_path_factory.mktemp("shared"), empty_database) as start:
        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_client(start_shared: Start) -> httpx2.AsyncClient:
    """A client of an open gateway, for tests that neither change the gateway nor depend on its content."""
    return (await start_shared())[1]


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    """An open gateway on a loopback address, without limits."""
    return await start()


@pytest.fixture
def client(gateway: Gateway) -> httpx2.AsyncClient:
    """A client of that gateway."""
    return gateway[1]


@pytest.fixture
def stored() -> Callable[[App], Awaitable[int]]:
    """``await stored(app)`` returns the number of sessions and turns in the database."""

    def count(connection: sa.Connection) -> int:
        tables = (sessions, turns)
        counts = [sa.select(sa.func.count()).select_from(table) for table in tables]
        return sum(connection.execute(statement).scalar_one() for statement in counts)

    return lambda app: app.database.run(count)
