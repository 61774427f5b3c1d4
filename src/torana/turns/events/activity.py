"""A bounded log of small events of the gateway, for clients that show all events."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from typing import Any, Literal

from torana.messages import EVERYONE, Turn

ActivityType = Literal[
    "reset",
    "turn.accepted",
    "turn.started",
    "turn.ended",
    "approval.required",
    "approval.decided",
    "delivery.ended",
    "connector.changed",
]

_NUMBER = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityEvent:
    """An event. ``owner`` None means that only a principal that sees everything receives it."""

    id: str
    type: ActivityType
    owner: str | None
    data: Mapping[str, Any]


class Activity:
    """The newest events of this process and of other replicas, in order.

    Events hold ids and states, and no texts. An event's id is ``<process>-<number>``, so a client that
    continues after a restart is told to begin anew.
    """

    def __init__(self, *, limit: int = 2_000) -> None:
        self._process = token_hex(6)
        self._events: deque[ActivityEvent] = deque(maxlen=limit)
        self._numbers = count(1)
        #: The number of the newest event.
        self._last = 0
        self._more = asyncio.Event()
        self._closed = False
        self._readers = 0
        #: Set while there are readers.
        self.followed = asyncio.Event()
        #: Called with each event of this process.
        self.on_publish: Callable[[ActivityEvent], None] | None = None

    def publish(self, type_: ActivityType, owner: str | None, data: Mapping[str, Any]) -> None:
        """Add an event of this process, for the readers of all replicas."""
        event = self.add(type_, owner, data)
        if self.on_publish is not None:
            self.on_publish(event)

    def add(self, type_: ActivityType, owner: str | None, data: Mapping[str, Any]) -> ActivityEvent:
        """Add an event without waiting for readers; the oldest event is dropped at the limit."""
        self._last = next(self._numbers)
        event = ActivityEvent(id=self._id(self._last), type=type_, owner=owner, data=data)
        self._events.append(event)
        self._wake()
        return event

    def reset(self) -> None:
        """Send a ``reset`` to all readers: events are missing."""
        self._events.clear()
        self._last = next(self._numbers)
        self._wake()

    def publish_turn(self, type_: ActivityType, turn: Turn, **more: Any) -> None:
        ids = {"turnId": turn.id, "sessionId": turn.session_id, "channelId": turn.channel}
        self.publish(type_, turn.owner, ids | more)

    async def follow(self, view: str, *, after: str | None = None) -> AsyncGenerator[ActivityEvent]:
        """Yield the events that a principal may see, from the event after ``after``, until ``close``.

        The first event is ``reset`` unless all events after ``after`` are still there. A reader that is too
        slow also receives a ``reset``: it has missed events.
        """
        position = self._position(after)
        with self._reading():
            while True:
                first = self._last - len(self._events) + 1
                if position is None or position < first - 1:
                    position = self._last
                    yield ActivityEvent(id=self._id(position), type="reset", owner=None, data={})
                elif position < self._last:
                    event = self._events[position + 1 - first]
                    position += 1
                    if view in (EVERYONE, event.owner):
                        yield event
                elif self._closed:
                    return
                else:
                    await self._more.wait()

    def close(self) -> None:
        self._closed = True
        self._wake()

    @contextmanager
    def _reading(self) -> Generator[None]:
        self._readers += 1
        self.followed.set()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self.followed.clear()

    def _id(self, number: int) -> str:
        return f"{self._process}-{number}"

    def _position(self, event_id: str | None) -> int | None:
        process, _, number = (event_id or "").partition("-")
        if process != self._process or not _NUMBER.fullmatch(number) or int(number) > self._last:
            return None
        return int(number)

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
