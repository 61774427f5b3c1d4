"""A turn's events as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from torana.api.dependencies import current_principal, services_of
from torana.api.long_responses import LONG, response_slot
from torana.api.negotiation import EVENTS
from torana.api.problems import body_of, error_from
from torana.api.schemas.approvals import ApprovalBody
from torana.api.schemas.contract import AnswerBody
from torana.errors import GatewayError, NotFound, StoreUnavailable, Unauthorized
from torana.messages import Principal, Turn, TurnEvent
from torana.turns import Turns

#: The number of characters of a long event that are sent at a time.
_PIECE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamClient:
    """The client of an event stream, with the id of its request.

    ``slot`` returns a slot for a long response. The stream holds it while it sends a long event. ``is_valid``
    returns whether the token of the request is still valid. ``has_posted`` is true if the stream is the
    response to the message.
    """

    principal: Principal
    request_id: str
    has_posted: bool
    slot: Callable[[], AbstractAsyncContextManager[None]]
    is_valid: Callable[[], Awaitable[bool]]

    @classmethod
    def of(cls, request: Request) -> StreamClient:
        """Return the client that has sent a request."""
        principal = current_principal(request)
        return cls(
            principal=principal,
            request_id=request.state.request_id,
            has_posted=request.method == "POST",
            slot=partial(response_slot, request),
            is_valid=partial(services_of(request).people.tokens.is_active, principal),
        )


class EventStream(StreamingResponse):
    """The events of a turn to its end, from the first event or after a given event.

    If the client disconnects, the turn continues; with ``cancel_on_disconnect`` it is cancelled. After
    ``keep_alive`` seconds without an event a comment is sent, so that proxies do not close the connection. The
    stream ends when the token has become invalid, which is checked every ``keep_alive`` seconds.
    """

    media_type = EVENTS

    def __init__(
        self,
        turns: Turns,
        turn: Turn,
        *,
        client: StreamClient,
        keep_alive: float,
        headers: Mapping[str, str] | None = None,
        after: str | None = None,
        cancel_on_disconnect: bool = False,
    ) -> None:
        self._turns = turns
        self._turn = replace(turn, reply=None)  # a slow client must not keep a long reply in memory
        self._has_long_reply = len(turn.reply or "") > LONG
        self._slot = client.slot
        self._is_valid = client.is_valid
        self._checked = time.monotonic()
        self._request_id = client.request_id
        self._keep_alive = keep_alive
        self._cancel_on_disconnect = cancel_on_disconnect
        # Without a user, several clients may read with the same token, such as the operator's console.
        is_own = client.has_posted or client.principal.user is not None
        self._to_sender = is_own and client.principal.may_have_sent(turn)
        self._over = False
        self._frames = self._play(after)
        super().__init__(
            self._frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. With ``cancel_on_disconnect``, cancel the turn if the client leaves early."""
        async with aclosing(self._frames):
            await super().__call__(scope, receive, send)
        if self._cancel_on_disconnect and not self._over:
            await self._turns.cancel(self._turn.owner, self._turn.id)

    async def _play(self, after: str | None) -> AsyncGenerator[str]:
        """Yield the events. A long reply of an ended turn is read only after the stream has a slot."""
        slot = None if self._has_long_reply else self._slot
        async with (
            self._slot() if self._has_long_reply else nullcontext(),
            aclosing(self._play_events(after, slot)) as frames,
        ):
            with suppress(StopAsyncIteration):
                while True:
                    yield await anext(frames)  # a variable would keep a long piece until the next event

    async def _play_events(
        self, after: str | None, slot: Callable[[], AbstractAsyncContextManager[None]] | None
    ) -> AsyncGenerator[str]:
        """Yield the events. Without ``slot`` the stream holds one already."""
        events = self._turns.reader.events(self._turn, after=after)
        upcoming: asyncio.Task[TurnEvent] | None = None
        try:
            # The first event exists already. A task that waits for it would run after the turn's own task.
            event = await anext(events) if after is None else None
            while True:
                if event is None:
                    upcoming = upcoming or asyncio.ensure_future(anext(events))
                    done, _ = await asyncio.wait([upcoming], timeout=self._keep_alive)
                    await self._check_token()
                    if not done:
                        yield ": keep-alive\n\n"
                        continue
                    event, upcoming = upcoming.result(), None
                data = await self._data(event)
                if slot is None or not _is_long(data):
                    for piece in _pieces(_frame(event, data)):
                        yield piece
                else:
                    del data  # many streams may wait for a slot
                    async with slot():
                        data = await self._data(event)
                        for piece in _pieces(_frame(event, data)):
                            yield piece
                del data  # the error that ends the events would keep it until the next garbage collection
                if self._to_sender and event.type == "approval.required":  # the sender can approve it now
                    await self._turns.approvals.note_streamed(event.data["id"])
                event = None
        except (StopAsyncIteration, GatewayError):  # an error after the start ends the stream
            self._over = True
        finally:
            if upcoming is not None:
                upcoming.cancel()  # this also closes the events
            else:
                await events.aclose()

    async def _check_token(self) -> None:
        """Raise ``Unauthorized`` if the token has ended. It is looked up every ``keep_alive`` seconds."""
        now = time.monotonic()
        if now - self._checked < self._keep_alive:
            return
        self._checked = now
        with suppress(StoreUnavailable):
            if not await self._is_valid():
                raise Unauthorized

    async def _data(self, event: TurnEvent) -> Mapping[str, Any]:
        """Return the data of an event; of a terminal event, the body of the plain response."""
        if event.type == "approval.required":
            return {**event.data, **await _arguments(self._turns, self._turn, event.data["id"])}
        if not event.terminal:
            return event.data
        ended = await self._turns.reader.wait_for_end(self._turn)
        if ended.failure is None:
            return AnswerBody.from_turn(ended).model_dump(mode="json")
        error: GatewayError = error_from(ended.failure)
        return body_of(error, request_id=self._request_id)


async def _arguments(turns: Turns, turn: Turn, approval_id: str) -> Mapping[str, Any]:
    """Return the current arguments of an approval and their digest; None for all if it does not exist."""
    names = ("digest", "arguments", "arguments_text")
    try:
        approval = await turns.approvals.get(turn.owner, approval_id)
    except NotFound:  # another approval has replaced it
        return {to_camel(name): None for name in names}
    return ApprovalBody.model_validate(approval).model_dump(mode="json", include=set(names))


def _pieces(frame: str) -> Iterator[str]:
    for start in range(0, len(frame), _PIECE):
        yield frame[start : start + _PIECE]


def _is_long(data: Mapping[str, Any]) -> bool:
    return sum(len(str(value)) for value in data.values()) > LONG


def _frame(event: TurnEvent, data: Mapping[str, Any]) -> str:
    text = json.dumps(dict(data), ensure_ascii=False, separators=(",", ":"))
    # A delta of a model may end within a surrogate pair. Half a pair is escaped as in JSON.
    text = text.encode(errors="backslashreplace").decode()
    return f"event: {event.type}\nid: {event.id}\ndata: {text}\n\n"
