"""Records of an account are stored by the holder of its lease."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from torana.connectors.base import RetryLater
from torana.connectors.runtime.supervisor import AccountRecords
from torana.messages import utc_now
from torana.store.engine.database import Database
from torana.store.rows import leases

ACCOUNT = "matrix:0123"


async def take(database: Database, holder: str, *, minutes: int = 1) -> bool:
    now = utc_now() + timedelta(minutes=minutes - 1)
    work = partial(leases.take, account=ACCOUNT, holder=holder, now=now, until=now + timedelta(minutes=1))
    return await database.run(work)


def records_of(database: Database, holder: str, account: str = ACCOUNT) -> AccountRecords:
    return AccountRecords(database=database, account=account, holder=holder)


async def test_next_holder_has_the_records(database: Database) -> None:
    assert await take(database, "here")
    here, there = records_of(database, "here"), records_of(database, "there")
    await here.save("keys", {"a": b"1", "b": b"2", "c": b"3"})
    await here.save("keys", {"a": b"one", "b": None, "d": b""})
    await here.save("others", {"a": b"other"})

    assert await take(database, "there", minutes=5)

    assert await there.load("keys") == {"a": b"one", "c": b"3", "d": b""}
    assert await there.load("others") == {"a": b"other"}
    assert await records_of(database, "there", "matrix:4567").load("keys") == {}


async def test_former_holder_stores_nothing(database: Database) -> None:
    assert await take(database, "here")
    await records_of(database, "here").save("keys", {"a": b"1"})
    assert await take(database, "there", minutes=5)

    with pytest.raises(RetryLater, match="another process listens"):
        await records_of(database, "here").save("keys", {"a": b"stale", "b": b"stale"})

    assert await records_of(database, "there").load("keys") == {"a": b"1"}


async def test_closed_database_is_a_reason_to_retry(database: Database) -> None:
    database.close()
    records = records_of(database, "here")

    with pytest.raises(RetryLater, match="cannot be read"):
        await records.load("keys")
    with pytest.raises(RetryLater, match="cannot be stored"):
        await records.save("keys", {"a": b"1"})
