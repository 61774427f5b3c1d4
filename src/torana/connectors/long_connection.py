"""The WebSocket over which some platforms say what is new, for as long as it lasts."""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection, connect

#: Seconds to open it in.
_OPEN = 30.0
#: How many seconds nothing may come before the connection is probed, and how many the probe may take.
_PROBE = 30.0


async def open_socket(url: str, *, largest: int) -> ClientConnection:
    """A connection that takes frames of at most so many bytes. Raises what ``websockets`` does."""
    return await connect(
        url,
        open_timeout=_OPEN,
        close_timeout=3,
        ping_interval=None,
        max_size=largest,
        compression=None,  # what is wrong in a frame would be wrong in all those after it
    )


async def next_frame(socket: ClientConnection) -> str | bytes | None:
    """What comes next; None where nothing does for a while, though somebody is there.

    Raises ``ConnectionError`` where nobody is.
    """
    try:
        async with asyncio.timeout(_PROBE):
            return await socket.recv()
    except TimeoutError:
        await _probe(socket)
        return None


async def _probe(socket: ClientConnection) -> None:
    """See whether anybody is there."""
    try:
        async with asyncio.timeout(_PROBE):
            await (await socket.ping())
    except TimeoutError:
        raise ConnectionError("the connection is dead: a ping was not answered") from None
