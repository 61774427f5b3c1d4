"""Exclude long-lived objects from Python's garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

#: The number of new objects before a collection of the youngest; Python's default of 700 is low for a server.
_YOUNGEST_THRESHOLD = 10_000


@contextmanager
def paused_collector() -> Generator[None]:
    """Disable the garbage collector during the start, because most objects built then stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_objects() -> None:
    """Collect only objects that are created from now on.

    The imported modules have several hundred thousand objects. Traversing them blocks the gateway for 0.2 s,
    and without this it happens every few hundred messages.
    """
    gc.freeze()
    gc.set_threshold(_YOUNGEST_THRESHOLD, *gc.get_threshold()[1:])
    gc.enable()
