"""Return freed memory to the system, which the C library keeps after large messages."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from contextlib import suppress

from torana.health import resident_memory

#: Seconds between two measurements, and the bytes above the memory of the start at which memory is returned.
_PERIOD, _GROWTH = 60.0, 64_000_000


async def keep_returning_memory() -> None:
    """Return freed memory once a minute while the process has more memory than after its start."""
    most = resident_memory() + _GROWTH
    while True:
        await asyncio.sleep(_PERIOD)
        if resident_memory() > most:
            await asyncio.to_thread(return_memory)


def return_memory() -> None:
    """Collect garbage, and return freed memory to the system, if the C library can do it (malloc_trim(3)).

    Python collects old garbage only after many new objects. Few of them can hold long texts, such as the errors
    of failed turns. The objects of the start are not traversed (``collector``).
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)
