"""A turn's events as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

from torana.api import wire
from torana.api.negotiation import EVENTS
from torana.api.problems import body_of, error_from
from torana.errors import GatewayError
from torana.messages import Turn, TurnEvent
from torana.turns import Turns


class EventStream(StreamingResponse):
    """The events of one turn from its first to its end. Leaving it does nothing to the turn.

    After ``keep_alive`` seconds of silence, in which proxies begin to think of closing, a comment is sent.
    """

    media_type = EVENTS

    def __init__(
        self,
        turns: Turns,
        turn: Turn,
        *,
        request_id: str,
        keep_alive: float,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(
            _frames(turns, turn, request_id=request_id, keep_alive=keep_alive),
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers},
        )


async def _frames(turns: Turns, turn: Turn, *, request_id: str, keep_alive: float) -> AsyncIterator[str]:
    events = turns.events(turn)
    upcoming: asyncio.Task[TurnEvent] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([upcoming], timeout=keep_alive)
            if not done:
                yield ": keep-alive\n\n"
                continue
            event, upcoming = upcoming.result(), None
            yield _frame(event, await _data(turns, turn, event, request_id))
    except (StopAsyncIteration, GatewayError):  # the stream has begun: there is no other way to say so
        return
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
