"""Bound the amount of data that a server may send."""

from __future__ import annotations

import asyncio

#: Maximum size, in bytes, of a message; parsing a larger one would delay everything else.
MESSAGE_LIMIT = 2 * 1_048_576
#: Maximum number of JSON values in a message. Validating an unexpected value takes the library 25 µs.
VALUES_LIMIT = 20_000
#: The reason for refusing a message with more values.
TOO_MANY_VALUES = f"the message has more than {VALUES_LIMIT:,} JSON values"
#: Messages of one server that are read in a second; more messages wait in its pipe.
_PER_SECOND = 500
#: Numbers of bytes and of JSON values that count as one message. The largest text takes 15 ms to parse; most of
#: the time is that of the values.
_BYTES, _VALUES = 16_384, 20


class Throttle:
    """Limits the data that is read from one connection in a second."""

    def __init__(self) -> None:
        self._spent = 0
        self._begun = 0.0

    async def spend(self, size: int, *, messages: int = 1, values: int = 0) -> None:
        """Wait until ``messages`` more messages may be read, with ``size`` bytes and ``values`` in total."""
        now = asyncio.get_running_loop().time()
        if now - self._begun >= 1:
            self._begun, self._spent = now, 0
        self._spent += messages + size // _BYTES + values // _VALUES
        if self._spent > _PER_SECOND:
            await asyncio.sleep(max(0.0, self._begun + self._spent / _PER_SECOND - now))
