"""A replica notices that another replica deleted a turn that it keeps in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.assembling import turns_over
from tests.unit.turns.conftest import Obedient
from tests.waiting import PATIENCE

from torana.errors import Erased
from torana.messages import Inbound
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.tables import turns as turn_rows
from torana.turns import Turns


@pytest.fixture
def databases(postgres_url: str) -> Generator[list[PostgresDatabase]]:
    """The database of two replicas."""
    opened = [PostgresDatabase(url=PostgresUrl(postgres_url), replicated=True) for _ in range(2)]
    yield opened
    for database in opened:
        database.close()


@pytest.fixture
async def replicas(databases: list[PostgresDatabase]) -> AsyncGenerator[list[Turns]]:
    """Two replicas whose agents end no turn."""
    started = [turns_over(database, Obedient()) for database in databases]
    for turns in started:
        await turns.start()
    yield started
    for turns in started:
        await turns.stop(grace=0)


async def test_queued_turn_that_another_replica_deleted_leaves_the_memory(
    databases: list[PostgresDatabase], replicas: list[Turns], message: Callable[..., Inbound]
) -> None:
    first, second = replicas
    await first.accept(message("runs"))
    queued = await second.accept(message("waits"))

    def delete(connection: Connection) -> None:
        connection.execute(sa.delete(turn_rows).where(turn_rows.c.id == queued.id))

    await databases[0].run(delete)

    with pytest.raises(Erased):
        async with asyncio.timeout(PATIENCE):
            await second.reader.wait_for_end(queued)
    assert queued.id not in second.live
    assert not second.live.log.has_events(queued.id)
