"""The order of the messages of a chat that reach several replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
import sqlalchemy as sa

from torana.connectors.base import Attachment, IncomingMessage, Place, Sender
from torana.connectors.platforms.webhook import Webhook, WebhookSettings
from torana.connectors.registry import Account
from torana.connectors.runtime.chat_order import SharedOrder
from torana.connectors.runtime.ingress import Admission, Ingress
from torana.errors import StoreUnavailable
from torana.limits.rates import MessageRates
from torana.messages import utc_now
from torana.people.pairing import Pairing
from torana.store.engine.database import Connection, Database
from torana.store.engine.postgres import replicas as replica_rows
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.tables import leases, turns
from torana.turns import Turns


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def database(request: pytest.FixtureRequest) -> Generator[Database]:
    if request.param == "sqlite":
        yield request.getfixturevalue("open_database")()
        return
    database = PostgresDatabase(url=PostgresUrl(request.getfixturevalue("postgres_url")), replicated=True)
    yield database
    database.close()


def queued(connection: Connection) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(leases)).scalar_one()


class Replicas:
    """Replicas that receive messages of chats, and the order in which the messages come through."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._orders = [SharedOrder(database=database, account="line", clock=clock) for _ in range(3)]
        self._database = database
        self.through: list[str] = []

    async def hear(
        self, replica: int, text: str, *, chat: str = "ana", until: asyncio.Event
    ) -> asyncio.Task[None]:
        """Receive a message, whose processing takes until the event; return when it is in the queue."""

        async def process() -> None:
            async with self._orders[replica].hold(chat):
                await until.wait()
                self.through.append(text)

        before = await self._database.read(queued)
        task = asyncio.create_task(process())
        while await self._database.read(queued) == before:
            assert not task.done()
        return task


async def test_messages_come_through_in_the_order_of_their_arrival(database: Database) -> None:
    replicas, fetched, at_once = Replicas(database), asyncio.Event(), asyncio.Event()
    at_once.set()

    tasks = [await replicas.hear(0, "a photo", until=fetched)]
    tasks += [
        await replicas.hear(replica, text, until=at_once)
        for replica, text in ((1, "what is this?"), (2, "a cat?"), (0, "or a dog?"))
    ]
    await asyncio.wait_for(await replicas.hear(1, "hello", chat="bob", until=at_once), 20)
    assert replicas.through == ["hello"]
    fetched.set()
    await asyncio.gather(*tasks)

    assert replicas.through == ["hello", "a photo", "what is this?", "a cat?", "or a dog?"]
    assert await database.read(queued) == 0


async def test_cancelled_message_does_not_hold_the_next_ones(database: Database) -> None:
    replicas, never, at_once = Replicas(database), asyncio.Event(), asyncio.Event()
    at_once.set()
    first = await replicas.hear(0, "first", until=never)
    second = await replicas.hear(1, "second", until=never)
    third = await replicas.hear(2, "third", until=at_once)

    second.cancel()
    first.cancel()
    await asyncio.wait_for(third, 20)

    assert replicas.through == ["third"]


async def test_call_that_ends_while_it_takes_its_place_leaves_none(database: Database) -> None:
    order, at_once = SharedOrder(database=database, account="line", clock=utc_now), asyncio.Event()
    at_once.set()

    async def hold() -> None:
        async with order.hold("ana"):
            await asyncio.Event().wait()

    for pauses in range(12):  # the call ends at different moments
        call = asyncio.create_task(hold())
        for _ in range(pauses):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    assert await database.read(queued) == 0
    replicas = Replicas(database)
    await asyncio.wait_for(await replicas.hear(0, "next", until=at_once), 20)


async def test_order_survives_an_outage_of_the_database() -> None:
    through: list[str] = []
    down = Down()
    order = SharedOrder(database=cast("Database", down), account="line", clock=utc_now)

    async def hear(text: str) -> None:
        async with order.hold("ana"):
            through.append(text)

    first = asyncio.create_task(hear("first"))
    await down.failed.wait()
    second = asyncio.create_task(hear("second"))
    async with asyncio.timeout(20):
        await asyncio.gather(first, second)

    assert through == ["first", "second"]


class Down:
    """A database that fails once."""

    replica = "rep_a"

    def __init__(self) -> None:
        self.failed = asyncio.Event()

    async def run(self, work: partial[Any]) -> Any:
        if not self.failed.is_set():
            self.failed.set()
            raise StoreUnavailable
        return "queue:a:1:rep_a"

    async def read(self, work: object) -> bool:
        return True


@pytest.mark.long
async def test_places_of_living_replicas_stay_when_another_is_removed(postgres_url: str) -> None:
    with closing(PostgresDatabase(url=PostgresUrl(postgres_url), replicated=True)) as database:
        async with SharedOrder(database=database, account="line", clock=utc_now).hold("ana"):
            await database.run(partial(replica_rows.remove, replicas=["rep_gone"]))
            assert await database.read(queued) == 1
        assert await database.read(queued) == 0


async def test_place_of_an_ended_replica_expires(database: Database) -> None:
    now = utc_now()
    replicas, at_once = Replicas(database, clock=lambda: now), asyncio.Event()
    at_once.set()
    ended = await replicas.hear(0, "of the ended replica", until=asyncio.Event())
    await database.run(expire)
    now += timedelta(seconds=61)

    await asyncio.wait_for(await replicas.hear(1, "next", until=at_once), 20)

    assert replicas.through == ["next"]
    ended.cancel()


def expire(connection: Connection) -> None:
    """End the places by PostgreSQL's clock, which the test cannot set."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.update(leases).values(until=utc_now() - timedelta(seconds=1)))


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # the fixture of turns needs one
async def test_question_about_a_photo_waits_for_the_photo_at_another_replica(
    postgres_url: str, open_turns: Callable[..., Turns]
) -> None:
    asked, arrives = asyncio.Event(), asyncio.Event()

    async def fetch(_limit: int) -> bytes:
        asked.set()
        await arrives.wait()
        return PNG

    photo = message("1", "", Attachment(kind="image", name="cat.png", media_type="image/png", fetch=fetch))
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(closing(PostgresDatabase(url=PostgresUrl(postgres_url), replicated=True)))
            for _ in range(2)
        )
        first, second = ingress(one, open_turns(database=one)), ingress(other, open_turns(database=other))
        async with asyncio.timeout(20), asyncio.TaskGroup() as hearing:
            hearing.create_task(first.hear(photo))
            await asked.wait()
            hearing.create_task(second.hear(message("2", "What is this?")))
            while await other.read(queued) < 2:
                pass
            arrives.set()
        newest = await one.read(lambda connection: connection.execute(_CONTENTS).scalars().all())

    assert newest == ["[image: cat.png, image/png]", "What is this?"]


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
_CONTENTS = sa.select(turns.c.content).order_by(turns.c.seq)


def message(key: str, text: str, *attachments: Attachment) -> IncomingMessage:
    return IncomingMessage(
        id=key,
        sender=Sender(id="ana"),
        place=Place(chat="ana"),
        text=text,
        direct=True,
        addressed=True,
        attachments=attachments,
    )


def ingress(database: Database, running: Turns) -> Ingress:
    """Return the ingress of a replica's webhook account."""
    connector = Webhook(WebhookSettings.model_validate({"secrets": ["whsec_" + "a" * 32], "allow": ["*"]}))
    admission = Admission(
        turns=running,
        rates=MessageRates(per_user=0, overall=0),
        pairing=Pairing(database=database, clock=utc_now),
        database=database,
        takes=frozenset({"image"}),
    )
    return admission.ingress(Account(name="hooks", kind="webhook", values={}), connector, taken=lambda _: None)
