"""The order in which messages of a chat are accepted, in one process or in several replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Protocol
from weakref import WeakValueDictionary

from torana.errors import StoreUnavailable
from torana.messages import new_id
from torana.store.engine.database import Connection, Database, retry_until_available
from torana.store.rows import leases

#: The time after which a place in a queue is free again; longer than a platform's call may take.
_PLACE = timedelta(seconds=60)
#: Seconds between two looks at the messages ahead.
_LOOK = 0.05


class ChatOrder(Protocol):
    """Accepts the messages of a chat one after the other, in the order of their arrival."""

    def hold(self, chat: str) -> AbstractAsyncContextManager[None]:
        """Wait for the earlier messages of the chat; the next one waits until the block ends."""
        ...


class LocalOrder:
    """The order of the messages that this process receives."""

    def __init__(self) -> None:
        self._chats: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, chat: str) -> AsyncGenerator[None]:
        lock = self._chats.setdefault(chat, asyncio.Lock())
        async with lock:
            yield


class SharedOrder:
    """The order of the messages that all replicas receive, as a queue in the database.

    The places of a replica that has ended are free after a minute, or when it is removed.
    """

    def __init__(self, *, database: Database, account: str, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._account = account
        self._clock = clock
        #: In this process, messages take their places in order, and only the first of a chat asks the database.
        self._drawing, self._looking = LocalOrder(), LocalOrder()

    @asynccontextmanager
    async def hold(self, chat: str) -> AsyncGenerator[None]:
        # The id of a chat can be that of a person, whose data can be erased: only a digest is stored.
        queue = sha256(f"{self._account}/{chat}".encode()).hexdigest()[:32]
        holder = f"{self._database.replica}#{new_id('queue')}"
        draw = partial(self._database.run, partial(self._draw, queue=queue, holder=holder))
        try:
            async with self._drawing.hold(chat):
                ticket = await retry_until_available(draw, pause=asyncio.sleep)
            look = partial(self._database.read, partial(self._is_first, ticket=ticket))
            async with self._looking.hold(chat):
                while not await retry_until_available(look, pause=asyncio.sleep):  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(_LOOK)
                yield
        finally:  # also if the call ended while the place was taken
            with suppress(StoreUnavailable):
                await self._database.run(partial(leases.leave_queue, holder=holder))

    def _draw(self, connection: Connection, queue: str, holder: str) -> str:
        now = leases.shared_time(connection, self._clock())
        return leases.draw_ticket(connection, queue, holder, now=now, until=now + _PLACE)

    def _is_first(self, connection: Connection, ticket: str) -> bool:
        return leases.is_first(connection, ticket, now=leases.shared_time(connection, self._clock()))
