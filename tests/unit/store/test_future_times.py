"""Periods that began by a clock that was years ahead last no longer than they should once it is right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa
from tests.standins.clock import Clock

from torana.errors import NotFound
from torana.messages import GATEWAY_OWNER, Inbound
from torana.people.pairing import VALID, Pairing
from torana.people.tokens import Issued, NewToken, Tokens
from torana.store import deliveries, leases
from torana.store.audit import Act
from torana.store.database import Database
from torana.store.future_times import pull_back
from torana.store.senders import Asker
from torana.store.tables import keys
from torana.testing import ScriptedModel
from torana.turns import Turns

AHEAD = datetime(2029, 3, 2, 9, 30, tzinfo=UTC)
RIGHT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def wall() -> Clock:
    return Clock(AHEAD)


def act_at(clock: Clock) -> Act:
    return Act(principal="operator", source="test", at=clock())


async def set_back(database: Database, clock: Clock) -> dict[str, int]:
    clock.now = RIGHT
    return await database.run(partial(pull_back, now=RIGHT))


async def is_valid(tokens: Tokens, issued: Issued) -> bool:
    return await tokens.authenticate(issued.secret) is not None


async def test_a_token_lives_for_its_lifetime(database: Database, wall: Clock) -> None:
    tokens = Tokens(database=database, clock=wall)
    issued = await tokens.create(NewToken(lifetime=30 * DAY), act=act_at(wall))
    assert await set_back(database, wall) == {"tokens": 1}
    assert await is_valid(tokens, issued)
    wall.now += 30 * DAY
    assert not await is_valid(tokens, issued)


@pytest.mark.parametrize("lifetime", [None, 90 * DAY])
async def test_a_replaced_token_ends_after_the_overlap(
    database: Database, wall: Clock, lifetime: timedelta | None
) -> None:
    wall.now = RIGHT
    tokens = Tokens(database=database, clock=wall)
    old = await tokens.create(NewToken(lifetime=lifetime), act=act_at(wall))
    wall.now = RIGHT + 45 * DAY
    new = await tokens.rotate(old.token.id, overlap=HOUR, act=act_at(wall))
    await set_back(database, wall)
    assert await is_valid(tokens, old)
    wall.now += HOUR
    assert not await is_valid(tokens, old)
    assert await is_valid(tokens, new)


async def test_a_pairing_code_expires_and_another_one_is_given(database: Database, wall: Clock) -> None:
    pairing = Pairing(database=database, clock=wall)
    asker = Asker(kind="chat", sender="eve", account="home", place="{}", name="Eve")
    code = await pairing.ask(asker)
    await set_back(database, wall)
    wall.now += VALID
    with pytest.raises(NotFound):
        await pairing.approve(code or "", kinds=["chat"], act=act_at(wall))
    assert await pairing.ask(asker) is not None


async def test_an_idempotency_key_is_free_after_a_day(
    database: Database, wall: Clock, open_turns: Callable[..., Turns]
) -> None:
    turns = open_turns(ScriptedModel("one", "two"), database=database, clock=wall)
    inbound = Inbound(owner=GATEWAY_OWNER, principal="local", content="hello", channel="home", key="k")
    first = await turns.submit(inbound)
    await turns.ended(first.turn)
    await set_back(database, wall)
    assert not (await turns.submit(inbound)).new
    wall.now += DAY
    again = await turns.submit(inbound)
    assert again.new
    await turns.ended(again.turn)
    count = sa.select(sa.func.count()).select_from(keys)
    assert await database.run(lambda connection: connection.execute(count).scalar_one()) == 1


async def test_a_delivery_is_tried_again_and_becomes_stale_after_a_day(database: Database, wall: Clock) -> None:
    await database.run(
        partial(deliveries.add_notice, account="home", line="a", place="{}", text="hello", at=AHEAD)
    )
    await set_back(database, wall)
    read = partial(deliveries.heads, account="home")
    assert [head.due_at for head in await database.run(partial(read, now=RIGHT))] == [RIGHT]
    assert await database.run(partial(read, now=RIGHT + DAY + HOUR)) == []


async def test_a_lease_of_the_future_is_no_lease(database: Database) -> None:
    async def take(holder: str, now: datetime) -> bool:
        until = now + timedelta(seconds=45)
        return await database.run(partial(leases.take, account="a", holder=holder, now=now, until=until))

    assert await take("one", AHEAD)
    assert await take("two", RIGHT)
    assert not await take("one", RIGHT)


async def test_right_times_are_left_as_they_are(database: Database, wall: Clock) -> None:
    wall.now = RIGHT
    tokens = Tokens(database=database, clock=wall)
    await tokens.create(NewToken(lifetime=DAY), act=act_at(wall))
    asker = Asker(kind="chat", sender="eve", account="home", place="{}", name="Eve")
    await Pairing(database=database, clock=wall).ask(asker)
    assert await set_back(database, wall) == {}
