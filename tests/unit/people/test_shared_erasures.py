"""Erasures of other replicas whose files cannot be deleted at first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from tests.assembling import turns_over

from torana.agent import TurnAgent
from torana.messages import utc_now
from torana.people.erased_files import ErasedFiles
from torana.people.shared_erasures import CURSOR_NAME, SharedErasures
from torana.store.engine.database import Connection
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.postgres.erasures import list_unconfirmed, with_erasure
from torana.testing import ScriptedModel


@pytest.fixture
async def database(postgres_url: str) -> AsyncGenerator[PostgresDatabase]:
    opened = await asyncio.to_thread(lambda: PostgresDatabase(url=PostgresUrl(postgres_url), replicated=True))
    yield opened
    await asyncio.to_thread(opened.close)


async def test_failed_erasure_is_repeated(
    database: PostgresDatabase,
    open_agent: Callable[..., TurnAgent],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = turns_over(database, open_agent(ScriptedModel(), database=database))
    files = ErasedFiles(database=database, reader=turns.reader, data_dir=tmp_path)
    pending = asyncio.Event()
    shared = SharedErasures(database=database, files=files, data_dir=tmp_path, pending=pending)

    def work(_connection: Connection) -> bool:
        return True

    await database.run(with_erasure(work, "ana", utc_now()))
    obstacle = tmp_path / f"{CURSOR_NAME}.part"
    obstacle.mkdir()

    assert not await shared.start()

    assert caplog.messages == ["erasure_not_carried_out"]
    assert await database.run(list_unconfirmed) == {database.replica: 1}
    obstacle.rmdir()
    pending.set()
    async with asyncio.timeout(20):
        while await database.run(list_unconfirmed):
            pass
    await shared.stop()
    assert (tmp_path / CURSOR_NAME).read_text().startswith("era_")
