"""The longest names that the gateway accepts fit into the indexes of PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage
from sqlalchemy.engine import Connection

from torana.limits.prices import Prices
from torana.messages import ID_LIMIT, SCHEDULE_PRINCIPAL, Inbound, new_id
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.rows import turns as rows
from torana.store.rows.reports import spending
from torana.store.rows.turns import Ending, NewTurn

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.fixture
def database(postgres_url: str) -> Generator[PostgresDatabase]:
    database = PostgresDatabase(url=PostgresUrl(postgres_url))
    yield database
    database.close()


def random_text(characters: int) -> str:
    """Return a text that cannot be compressed, of characters with four bytes."""
    return "".join(chr(0x20000 + random.randrange(0xA000)) for _ in range(characters))


async def test_longest_names_of_a_turn_fit_into_the_indexes(
    database: PostgresDatabase, message: Callable[..., Inbound]
) -> None:
    user, channel = random_text(ID_LIMIT), random_text(ID_LIMIT)
    inbound = replace(
        message(user=user, owner=user, channel=channel, token=new_id("tok")),
        principal=SCHEDULE_PRINCIPAL + new_id("sch"),
    )
    responses = [
        ModelResponse(parts=[], model_name=name, usage=RequestUsage(input_tokens=7))
        for name in ("gpt-5", random_text(8_000))
    ]

    def run_turn(connection: Connection) -> None:
        new = NewTurn(turn_id=new_id("turn"), session_id=new_id("ses"), channel=channel, at=AT)
        turn = rows.accept(connection, inbound, new, hold=False).turn
        rows.finish(connection, turn, Ending(at=AT, spent=Prices().usage(responses)), hold=False)

    await database.run(run_turn)
    spent = await database.run(
        lambda connection: spending.sums_by(connection, "model", first="2026-03-02", last="2026-03-02", limit=9)
    )

    assert sorted(amount.input_tokens for _, amount in spent if amount.input_tokens) == [7, 7]
