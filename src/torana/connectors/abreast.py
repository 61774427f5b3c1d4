"""Hears messages beside each other, so that one whose file hangs does not hold up other chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from torana.connectors.base import Ears, Heard

#: Messages that are heard at once; with more the platform waits.
_MOST = 100


class Hear(Protocol):
    """Begins to hear a message."""

    async def __call__(self, heard: Heard, taken: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begin to hear a message; ``taken`` is awaited when the platform may be told.

        Returns at once, unless too many are heard already. Those of a chat are taken in the order of the calls.
        """
        ...


@asynccontextmanager
async def abreast(ears: Ears) -> AsyncGenerator[Hear]:
    """A block in which messages are heard; at its end all of them were taken.

    Whatever one of them raises ends the others and the block, and is raised.
    """
    room = asyncio.Semaphore(_MOST)

    async def take(heard: Heard, taken: Callable[[], Awaitable[None]] | None) -> None:
        await ears.hear(heard)
        if taken is not None:
            await taken()
        room.release()

    async def hear(heard: Heard, taken: Callable[[], Awaitable[None]] | None = None) -> None:
        await room.acquire()
        group.create_task(take(heard, taken))

    try:
        async with asyncio.TaskGroup() as group:
            yield hear
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
