"""Process messages concurrently, so that a slow file download does not delay other chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from torana.connectors.base import IncomingMessage, MessageSink

#: Limit for the messages in progress: characters in total, and the fixed cost of each message. Above the limit
#: the connector stops reading. One slow chat can use the whole limit, which is far more than people type during
#: a slow download.
_ROOM, _EACH = 10_000_000, 5_000


class Hear(Protocol):
    """A function that begins to process a message."""

    async def __call__(
        self, heard: IncomingMessage, taken: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Begin to process a message; ``taken`` acknowledges it and is awaited afterwards.

        Returns at once, unless the limit is reached. A chat's messages are processed in the order of calls.
        """
        ...


@asynccontextmanager
async def concurrently(sink: MessageSink) -> AsyncGenerator[Hear]:
    """Process messages concurrently inside the block; at its end all messages have been processed.

    The first error cancels the others and ends the block, which raises it.
    """
    held, left = 0, asyncio.Event()

    async def take(heard: IncomingMessage, taken: Callable[[], Awaitable[None]] | None, size: int) -> None:
        nonlocal held
        await sink.hear(heard)
        if taken is not None:
            await taken()
        held -= size
        left.set()

    async def hear(heard: IncomingMessage, taken: Callable[[], Awaitable[None]] | None = None) -> None:
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
