"""A replica notices that another replica deleted a turn that it keeps in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.assembling import turns_over
from tests.unit.turns.conftest import Obedient

from torana.errors import Erased
from torana.messages import Inbound
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.tables import turns as turn_rows
from torana.turns import Turns

#: Seconds to wait for a replica to check its turns, which it does every second.
_PATIENCE = 20.0


@pytest.fixture
async def replicas(postgres_url: str) -> AsyncGenerator[list[Turns]]:
    """Two replicas whose agents end no turn."""
    opened = [PostgresDatabase(url=PostgresUrl(postgres_url), replicated=True) for _ in range(2)]
    started = [turns_over(database, Obedient()) for database in opened]
    for turns in started:
        await turns.start()
    yield started
    for turns in started:
        await turns.stop(grace=0)
    for database in opened:
        database.close()


async def test_queued_turn_that_another_replica_deleted_leaves_the_memory(
    replicas: list[Turns], message: Callable[..., Inbound]
) -> None:
    first, second = replicas
    await first.accept(message("runs"))
    queued = await second.accept(message("waits"))

    def delete(connection: Connection) -> None:
        connection.execute(sa.delete(turn_rows).where(turn_rows.c.id == queued.id))

    await first.reader._database.run(delete)

    with pytest.raises(Erased):
        async with asyncio.timeout(_PATIENCE):
            await second.reader.wait_for_end(queued)
    assert queued.id not in second.live
    assert not second.live.log.has_events(queued.id)
