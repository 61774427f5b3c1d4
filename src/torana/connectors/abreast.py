"""Hears messages beside each other, so that one whose file hangs does not hold up other chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from torana.connectors.base import Ears, Heard

#: What is heard at once has so many characters at most, and each message counts as some by itself; with more
#: the platform waits. It tells all chats in one order, so a chat that waits may fill all of the room: that is
#: far more than anybody writes while a file hangs.
_ROOM, _EACH = 10_000_000, 5_000


class Hear(Protocol):
    """Begins to hear a message."""

    async def __call__(self, heard: Heard, taken: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begin to hear a message; ``taken`` is awaited when the platform may be told.

        Returns at once, unless too much is heard already. Those of a chat are taken in the order of the calls.
        """
        ...


@asynccontextmanager
async def abreast(ears: Ears) -> AsyncGenerator[Hear]:
    """A block in which messages are heard; at its end all of them were taken.

    Whatever one of them raises ends the others and the block, and is raised.
    """
    held, left = 0, asyncio.Event()

    async def take(heard: Heard, taken: Callable[[], Awaitable[None]] | None, size: int) -> None:
        nonlocal held
        await ears.hear(heard)
        if taken is not None:
            await taken()
        held -= size
        left.set()

    async def hear(heard: Heard, taken: Callable[[], Awaitable[None]] | None = None) -> None:
        nonlocal held
        size = _EACH + len(heard.text)
        while held and held + size > _ROOM:
            left.clear()
            await left.wait()
        held += size
        group.create_task(take(heard, taken, size))

    try:
        async with asyncio.TaskGroup() as group:
            yield hear
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
