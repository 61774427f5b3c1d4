"""How much a server may say."""

from __future__ import annotations

import asyncio

#: Bytes that one message may have; reading a larger one would hold up all others.
MESSAGE_LIMIT = 2 * 1_048_576
#: Messages of one server that are read in a second; the others wait in its pipe.
_PER_SECOND = 500
#: Bytes that count as a message: what takes long to read is its length.
_BYTES = 1024


class Throttle:
    """Lets so much of one connection through in a second."""

    def __init__(self) -> None:
        self._spent = 0
        self._begun = 0.0

    async def spend(self, size: int, *, messages: int = 1) -> None:
        """Wait until so many more messages, of so many bytes in all, may be read."""
        now = asyncio.get_running_loop().time()
        if now - self._begun >= 1:
            self._begun, self._spent = now, 0
        self._spent += messages + size // _BYTES
        if self._spent > _PER_SECOND:
            await asyncio.sleep(max(0.0, self._begun + self._spent / _PER_SECOND - now))
