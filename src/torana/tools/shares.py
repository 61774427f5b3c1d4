"""Shares of tools that take long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

from torana.messages import owner_of
from torana.tools.base import ToolError
from torana.workers.fair_slots import FairSlots

#: The maximum number of concurrent calls by tool: in total, and for each user.
_CALLS = {
    "run_skill_script": (4, 2),
    "web_fetch": (8, 2),
    "web_search": (8, 2),
    "earlier_messages": (2, 1),
    "cancel_schedule": (2, 1),
}
#: Seconds until a call must have a slot: twice the time that a script or a page may take.
_WAIT = 60.0


class _Sent(Protocol):
    @property
    def owner(self) -> str: ...

    @property
    def user(self) -> str | None: ...


def sharing_user(sent: _Sent) -> str:
    """Return the user whose share of threads, processes and slow tools a turn or a new schedule uses."""
    return sent.owner if sent.user is None else owner_of(sent.user)


async def acquire_within(seconds: float, slots: FairSlots, user: str, *, refusal: str) -> None:
    """Wait for a slot, which the caller releases. Raises ``ToolError`` if that takes too long."""
    try:
        async with asyncio.timeout(seconds):
            await slots.acquire(user)
    except TimeoutError:
        raise ToolError(refusal) from None


@asynccontextmanager
async def slot_within(seconds: float, slots: FairSlots, user: str, *, refusal: str) -> AsyncGenerator[None]:
    """Hold a slot in the block. Raises ``ToolError`` as ``acquire_within`` does."""
    await acquire_within(seconds, slots, user, refusal=refusal)
    try:
        yield
    finally:
        slots.release(user)


class ToolShares:
    """Limits the concurrent calls of slow tools, and shares them fairly between users."""

    def __init__(self, *, calls: Mapping[str, tuple[int, int]] = _CALLS, wait: float = _WAIT) -> None:
        self._slots = {
            name: FairSlots(total=total, per_user=per_user) for name, (total, per_user) in calls.items()
        }
        self._wait = wait

    def slot(self, tool: str, user: str) -> AbstractAsyncContextManager[None]:
        """Wait until the user may call the tool. Raises ``ToolError`` if that takes too long."""
        if tool not in self._slots:
            return nullcontext()
        refusal = (
            f"Not run: earlier calls of {tool} took {self._wait:g} s. Make fewer calls at once, or try "
            "again later."
        )
        return slot_within(self._wait, self._slots[tool], user, refusal=refusal)
