"""Python's garbage collector, told what it need not look at again and again."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

#: New objects after which the young ones are looked through; Python's own 700 are few for a server.
_YOUNG = 10_000


@contextmanager
def paused_collector() -> Generator[None]:
    """A block in which nothing is looked through until ``spare_what_stays``: most of what is built stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def spare_what_stays() -> None:
    """Look through what is made from now on, and never again through what there is at this moment.

    The modules and what was built of them are some hundred thousand objects. To look through them takes 0.2 s,
    in which nobody is answered, and without this that happens every few hundred messages.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    gc.enable()
