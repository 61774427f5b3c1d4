"""Bound the number of answers to a server's requests that wait until they are sent."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse

#: The maximum number of answers that wait. The library has a task for each, of about 10 KB.
_WAITING = 256


class BoundedAnswers:
    """A stream to a server that refuses answers to the server's requests above a maximum of waiting ones.

    A server can send requests faster than it reads the answers, and the library starts a task for each request.
    """

    def __init__(self, stream: WriteStream[SessionMessage], *, full: Callable[[], None]) -> None:
        """``full`` is called when an answer is refused; it must end the connection."""
        self._stream = stream
        self._full = full
        self._waiting = 0

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message. Raises ``anyio.BrokenResourceError`` for an answer above the maximum."""
        if not isinstance(item.message, JSONRPCResponse | JSONRPCError):
            await self._stream.send(item)
            return
        if self._waiting >= _WAITING:
            self._full()
            raise anyio.BrokenResourceError
        self._waiting += 1
        try:
            await self._stream.send(item)
        finally:
            self._waiting -= 1

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        """Return the stream."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Close the stream."""
        await self.aclose()
