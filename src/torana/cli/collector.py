"""Python's garbage collector, told what it need not look at again and again."""

from __future__ import annotations

import gc

#: New objects after which the young ones are looked through; Python's own 700 are few for a server.
_YOUNG = 10_000


def pause_collector() -> None:
    """Look through nothing while the gateway is built: nearly all that is made then stays."""
    gc.disable()


def spare_what_stays() -> None:
    """Go on, without ever looking through what there is at this moment.

    The modules and what was built of them are some hundred thousand objects. To look through them takes 0.2 s,
    in which nobody is answered, and without this that happens every few hundred messages.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    gc.enable()
