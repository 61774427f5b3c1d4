"""Bound the amount of data that a server may send."""

from __future__ import annotations

import asyncio

#: Maximum size, in bytes, of a message; parsing a larger one would delay everything else.
MESSAGE_LIMIT = 2 * 1_048_576
#: Messages of one server that are read in a second; more messages wait in its pipe.
_PER_SECOND = 500
#: Number of bytes that count as one message: long messages take longer to parse.
_BYTES = 1024


class Throttle:
    """Limits the data that is read from one connection in a second."""

    def __init__(self) -> None:
        self._spent = 0
        self._begun = 0.0

    async def spend(self, size: int, *, messages: int = 1) -> None:
        """Wait until ``messages`` more messages with ``size`` bytes in total may be read."""
        now = asyncio.get_running_loop().time()
        if now - self._begun >= 1:
            self._begun, self._spent = now, 0
        self._spent += messages + size // _BYTES
        if self._spent > _PER_SECOND:
            await asyncio.sleep(max(0.0, self._begun + self._spent / _PER_SECOND - now))
