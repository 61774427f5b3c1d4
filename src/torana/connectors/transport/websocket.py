"""WebSocket connections that receive a platform's events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from torana.connectors.base import PermanentError

#: Timeout, in seconds, for opening a connection.
_OPEN = 30.0
#: Seconds of silence before the connection is probed, and the timeout of the probe.
_PROBE = 30.0
#: Maximum size, in bytes, of a frame.
_FRAME_BYTES = 4 * 1024 * 1024


async def open_socket(
    url: str, *, platform: str, refusal: Callable[[InvalidStatus], Exception] | None = None
) -> ClientConnection:
    """Open a connection. ``refusal`` returns the error for a response other than the expected one.

    The URL, which is a secret of some platforms, is in no error.
    """
    try:
        return await connect(
            url,
            open_timeout=_OPEN,
            close_timeout=3,
            ping_interval=None,
            max_size=_FRAME_BYTES,
            compression=None,  # with compression, one damaged frame would damage all later frames
        )
    except InvalidURI:
        raise PermanentError(f"{platform} returned no URL for the connection") from None
    except InvalidHandshake as error:
        if refusal is not None and isinstance(error, InvalidStatus):
            raise refusal(error) from None
        raise ConnectionError(f"{platform} refused the connection: {type(error).__name__}") from None


async def next_frame(socket: ClientConnection) -> str | bytes | None:
    """Return the next frame, or None after a silence at whose end the peer answered a ping.

    Raises ``ConnectionError`` if the peer does not answer.
    """
    try:
        async with asyncio.timeout(_PROBE):
            return await socket.recv()
    except TimeoutError:
        await _probe(socket)
        return None


async def _probe(socket: ClientConnection) -> None:
    try:
        async with asyncio.timeout(_PROBE):
            await (await socket.ping())
    except TimeoutError:
        raise ConnectionError("the connection is dead: a ping was not answered") from None
