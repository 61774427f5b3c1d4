"""Rows of leases under a clock that is set back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from torana.store import leases
from torana.store.database import Database


async def test_a_lease_that_was_taken_years_ahead_has_run_out(database: Database) -> None:
    async def take(holder: str, year: int) -> bool:
        now = datetime(year, 3, 2, tzinfo=UTC)
        until = now + timedelta(seconds=45)
        return await database.run(partial(leases.take, account="a", holder=holder, now=now, until=until))

    assert await take("one", 2029)
    assert await take("two", 2026)
    assert not await take("one", 2026)
