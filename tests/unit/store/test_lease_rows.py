"""Lease rows: a clock that is set back, and a holder that has lost its lease."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from torana.store.engine.database import Database
from torana.store.rows import leases


async def test_lease_taken_under_a_fast_clock_has_expired(database: Database) -> None:
    async def take(holder: str, year: int) -> bool:
        now = datetime(year, 3, 2, tzinfo=UTC)
        until = now + timedelta(seconds=45)
        return await database.run(partial(leases.take, account="a", holder=holder, now=now, until=until))

    assert await take("one", 2029)
    assert await take("two", 2026)
    assert not await take("one", 2026)


async def test_former_holder_does_not_end_the_lease_of_the_next_one(database: Database) -> None:
    async def take(holder: str, second: int) -> bool:
        now = datetime(2026, 3, 2, 9, 30, second, tzinfo=UTC)
        until = now + timedelta(seconds=5)
        return await database.run(partial(leases.take, account="a", holder=holder, now=now, until=until))

    assert await take("one", 0)
    assert await take("two", 10)
    await database.run(partial(leases.give_back, account="a", holder="one"))

    assert not await take("three", 11)
