"""Slots for long responses. A request takes one before its response is written, and holds it until it is sent.

Slots bound the memory of responses that clients read slowly. A text of control characters becomes six times as
long in JSON.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack

from starlette.requests import Request

from torana.api.dependencies import services_of, slot_of
from torana.messages import Turn

#: The number of characters of text above which a response needs a slot.
LONG = 20_000


def response_slot(request: Request) -> AbstractAsyncContextManager[None]:
    """Return a slot of the principal, which the caller enters."""
    return slot_of(request, services_of(request).long_responses)


async def hold_response_slot(request: Request) -> None:
    """Wait for a slot, and hold it until the response is sent."""
    held: AsyncExitStack = request.state.held
    await held.enter_async_context(response_slot(request))


async def hold_slot_if_long(request: Request, turn: Turn) -> Turn:
    """Return the turn. If its texts are long, drop it while the request waits for a slot, and read it again."""
    if len(turn.content) + len(turn.reply or "") <= LONG:
        return turn
    owner, turn_id = turn.owner, turn.id
    del turn
    await hold_response_slot(request)
    return await services_of(request).turns.reader.get(owner, turn_id)
