"""A turn's events as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from torana.api import wire
from torana.api.negotiation import EVENTS
from torana.api.problems import body_of, error_from
from torana.errors import GatewayError
from torana.messages import Turn, TurnEvent
from torana.turns import Turns


class EventStream(StreamingResponse):
    """The events of one turn to its end, from its first or behind one that was seen.

    Leaving it does nothing to the turn, unless ``cancel_when_left``. After ``keep_alive`` seconds of silence,
    in which proxies begin to think of closing, a comment is sent.
    """

    media_type = EVENTS

    def __init__(
        self,
        turns: Turns,
        turn: Turn,
        *,
        request_id: str,
        keep_alive: float,
        headers: Mapping[str, str] | None = None,
        after: str | None = None,
        cancel_when_left: bool = False,
    ) -> None:
        self._turns = turns
        self._turn = turn
        self._request_id = request_id
        self._keep_alive = keep_alive
        self._cancel_when_left = cancel_when_left
        self._over = False
        self._frames = self._play(after)
        super().__init__(
            self._frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; whoever leaves before the last one cancels the turn, where that was asked for."""
        async with aclosing(self._frames):
            await super().__call__(scope, receive, send)
        if self._cancel_when_left and not self._over:
            await self._turns.cancel(self._turn.owner, self._turn.id)

    async def _play(self, after: str | None) -> AsyncGenerator[str]:
        events = self._turns.events(self._turn, after=after)
        upcoming: asyncio.Task[TurnEvent] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(events))
                done, _ = await asyncio.wait([upcoming], timeout=self._keep_alive)
                if not done:
                    yield ": keep-alive\n\n"
                    continue
                event, upcoming = upcoming.result(), None
                yield _frame(event, await _data(self._turns, self._turn, event, self._request_id))
                if event.type == "approval.required":  # it was sent: whoever reads it can say yes to it
                    self._turns.approvals.note_streamed(event.data["id"])
        except (StopAsyncIteration, GatewayError):  # the stream has begun: there is no other way to say so
            self._over = True
        finally:
            if upcoming is not None:
                upcoming.cancel()  # which ends the events, too
            else:
                await events.aclose()


async def _data(turns: Turns, turn: Turn, event: TurnEvent, request_id: str) -> Mapping[str, Any]:
    """What a caller is told of an event; at the end the object that a plain request would have got."""
    if not event.terminal:
        return event.data
    ended = await turns.ended(turn)
    if ended.failure is None:
        return wire.answer(ended)
    error: GatewayError = error_from(ended.failure)
    return body_of(error, request_id=request_id)


def _frame(event: TurnEvent, data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # A model may cut a pair of surrogates in two: its halves are escaped, as JSON does it.
    text = text.encode(errors="backslashreplace").decode()
    return f"event: {event.type}\nid: {event.id}\ndata: {text}\n\n"
