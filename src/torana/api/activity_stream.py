"""The events of the gateway as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.responses import StreamingResponse

from torana.api.negotiation import EVENTS
from torana.errors import GatewayError
from torana.turns.events.activity import ActivityEvent


class ActivityStream(StreamingResponse):
    """Events until ``seconds`` have passed, the gateway stops, or the token of the request becomes invalid.

    The token is checked every ``keep_alive`` seconds. After this time without an event, a comment is sent.
    """

    media_type = EVENTS

    def __init__(
        self,
        events: AsyncGenerator[ActivityEvent],
        *,
        is_valid: Callable[[], Awaitable[bool]],
        keep_alive: float,
        seconds: float,
    ) -> None:
        self._events = events
        self._is_valid = is_valid
        self._keep_alive = keep_alive
        self._ends = time.monotonic() + seconds
        super().__init__(self._play(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def _play(self) -> AsyncGenerator[str]:
        upcoming: asyncio.Task[ActivityEvent] | None = None
        checked = time.monotonic()
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(self._events))
                left = self._ends - time.monotonic()
                done, _ = await asyncio.wait([upcoming], timeout=max(0.0, min(self._keep_alive, left)))
                if not done and time.monotonic() >= self._ends:
                    return
                if not done or time.monotonic() - checked >= self._keep_alive:
                    checked = time.monotonic()
                    if not await self._is_valid():
                        return
                if not done:
                    yield ": keep-alive\n\n"
                    continue
                event, upcoming = upcoming.result(), None
                yield _frame(event)
        except (StopAsyncIteration, GatewayError):
            return
        finally:
            if upcoming is not None:
                upcoming.cancel()  # this also closes the events
            else:
                await self._events.aclose()


def _frame(event: ActivityEvent) -> str:
    text = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {event.type}\nid: {event.id}\ndata: {text}\n\n"
