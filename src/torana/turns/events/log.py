"""The event log in this process's memory."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from torana.agent.text import GrowingText
from torana.messages import EventType, TurnEvent

_NUMBER = re.compile("[0-9]{1,18}")

#: Measured memory in bytes of a turn without events, and of an event without text.
_CHANNEL = 1_500
_EVENT = 400

#: The number of followers without pauses. Sending one event to one follower takes 0.1 milliseconds.
_UNPACED = 8
#: The seconds of a follower's pause after some text, for each follower above ``_UNPACED``, and their maximum.
_PAUSE, _LONGEST_PAUSE = 0.001, 0.25
#: The number of characters of several deltas above which no further delta joins them.
_JOINED = 16_384


class _Channel:
    """The last events of one turn, bounded in bytes, and its whole text.

    The event at position ``p`` has the id ``<attempt>-<p + 1><origin>``.
    """

    def __init__(self, *, attempt: int, limit: int, origin: str) -> None:
        self.attempt = attempt
        self._origin = origin
        self._limit = limit
        self._events: deque[TurnEvent] = deque()
        self._text = GrowingText()
        self._size = 0
        self._more = asyncio.Event()
        self.first = 0
        #: The events of the next attempt, which another process began.
        self.following: _Channel | None = None

    @property
    def end(self) -> int:
        return self.first + len(self._events)

    @property
    def is_closed(self) -> bool:
        return bool(self._events) and self._events[-1].terminal

    @property
    def weight(self) -> int:
        """Return the approximate memory in bytes of the events and the text."""
        return _CHANNEL + self._size + self._text.length

    @property
    def text(self) -> str:
        return str(self._text)

    def append(self, type_: EventType, data: Mapping[str, Any]) -> None:
        event = TurnEvent(self._id(self.end + 1), type_, data)
        self._events.append(event)
        self._size += _size(event)
        if event.type == "message.delta":
            self._text.append(event.data["text"])
        elif event.type in ("turn.resumed", "message.snapshot"):  # replaces all text before it
            self._text = GrowingText(event.data["text"])
        while self._size > self._limit and len(self._events) > 1:
            self._size -= _size(self._events.popleft())
            self.first += 1
        self.wake()

    def wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    def at(self, position: int) -> TurnEvent:
        return self._events[position - self.first]

    def text_from(self, position: int) -> tuple[int, TurnEvent]:
        """Return the position after some deltas, and an event with their text; after and with another event."""
        event = self.at(position)
        position += 1
        if event.type != "message.delta":
            return position, event
        text = event.data["text"]
        while position < self.end and len(text) < _JOINED and (more := self.at(position)).type == event.type:
            text += more.data["text"]
            position += 1
        return position, TurnEvent(self._id(position), event.type, {"text": text})

    def snapshot(self) -> tuple[int, TurnEvent]:
        """Return the position to continue at, and an event with all text so far.

        The event replaces all events but a terminal one.
        """
        position = self.end - 1 if self.is_closed else self.end
        return position, TurnEvent(self._id(position), "message.snapshot", _TextSoFar(self))

    def reset(self) -> TurnEvent:
        """Return an event without text, after which all events are replayed."""
        return TurnEvent(self._id(0), "message.snapshot", {"text": ""})

    def after(self, event_id: str | None) -> int:
        """Return the position after an event, or 0 for an unknown event."""
        attempt, _, number = (event_id or "").removesuffix(self._origin).partition("-")
        if attempt != str(self.attempt) or not _NUMBER.fullmatch(number):
            return 0
        return int(number) if int(number) <= self.end else 0

    async def more(self) -> None:
        await self._more.wait()

    def _id(self, number: int) -> str:
        return f"{self.attempt}-{number}{self._origin}"


class _TextSoFar(Mapping[str, Any]):
    """The data of a snapshot. Its text is copied when it is read, so that a waiting reader keeps no copy.

    If an event has replaced the text of the channel meanwhile, the reader also receives that event.
    """

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._length = len(channel.text)

    def __getitem__(self, name: str) -> str:
        if name != "text":
            raise KeyError(name)
        return self._channel.text[: self._length]

    def __iter__(self) -> Iterator[str]:
        return iter(("text",))

    def __len__(self) -> int:
        return 1


class EventLog:
    """Stores the events of live turns and of recently ended turns.

    A turn's row has its result even if its events are lost. Event ids are ``<attempt>-<n><origin>`` with ``n``
    from 1 without gaps, in the order of appending. The origin identifies the log, because the logs of two
    replicas contain different events of the same attempt. It is empty if there is only one log.

    The log is bounded in bytes for each turn, and in total for ended turns. The text of a running turn is not
    bounded: it becomes the reply. Many followers receive several deltas as one event, with pauses, so
    that the time that they take does not grow with their number.
    """

    def __init__(self, *, origin: str = "", turn_bytes: int = 2_000_000, ended_bytes: int = 16_000_000) -> None:
        """End each event id with ``origin``, which no other log of the same turns may have."""
        self._origin = origin
        self._turn_bytes = turn_bytes
        self._ended_bytes = ended_bytes
        self._ended_size = 0
        self._closed = False
        self._followers = 0
        self._live: dict[str, _Channel] = {}
        self._ended: OrderedDict[str, _Channel] = OrderedDict()

    def open(self, turn_id: str, *, attempt: int) -> None:
        """Begin the events of an attempt, and drop those of an earlier attempt."""
        self.forget(turn_id)
        before = self._live.get(turn_id)
        self._live[turn_id] = channel = _Channel(attempt=attempt, limit=self._turn_bytes, origin=self._origin)
        if before is not None:
            before.following = channel
            before.wake()

    def append(self, turn_id: str, type_: EventType, data: Mapping[str, Any]) -> None:
        """Add an event without waiting for slow readers. A terminal event is the last one."""
        channel = self._live[turn_id]
        channel.append(type_, data)
        if channel.is_closed:
            self._ended[turn_id] = self._live.pop(turn_id)
            self._ended_size += channel.weight
            while self._ended_size > self._ended_bytes:
                self.forget(next(iter(self._ended)))

    def forget(self, turn_id: str) -> None:
        """Drop the events of an ended turn. Other turns are not changed."""
        channel = self._ended.pop(turn_id, None)
        if channel is not None:
            self._ended_size -= channel.weight

    def attempt(self, turn_id: str) -> int | None:
        """Return the attempt whose events are open; None for an ended or unknown turn."""
        channel = self._live.get(turn_id)
        return None if channel is None else channel.attempt

    def text(self, turn_id: str) -> str:
        """Return all text of the open attempt so far."""
        channel = self._live.get(turn_id)
        return "" if channel is None else channel.text

    def has_events(self, turn_id: str) -> bool:
        """Return whether the log has events of this turn."""
        return turn_id in self._live or turn_id in self._ended

    def ended_attempt(self, turn_id: str) -> int | None:
        """Return the attempt whose events ended last in this log; None without one."""
        channel = self._ended.get(turn_id)
        return None if channel is None else channel.attempt

    async def follow(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Replay the events after ``after`` (all if it is unknown), then follow until the terminal event.

        If events were dropped because of their size, a ``message.snapshot`` with all text so far replaces them.
        If ``after`` is an event of another log, an empty ``message.snapshot`` comes first: the reader drops the
        text of that log. An unknown turn has no events.
        """
        channel = self._live.get(turn_id) or self._ended.get(turn_id)
        if channel is None:
            return
        self._followers += 1
        try:
            async for event in self._follow(channel, after):
                yield event
        finally:
            self._followers -= 1

    async def _follow(self, channel: _Channel, after: str | None) -> AsyncGenerator[TurnEvent]:
        if after and not after.endswith(self._origin):
            yield channel.reset()
        position = channel.after(after)
        while True:
            if position < channel.first:
                position, event = channel.snapshot()
                yield event
            elif position < channel.end and self._followers <= _UNPACED:
                event = channel.at(position)
                position += 1
                yield event
            elif position < channel.end:
                position, event = channel.text_from(position)
                yield event
                if event.type == "message.delta":
                    await asyncio.sleep(min(_PAUSE * (self._followers - _UNPACED), _LONGEST_PAUSE))
            elif channel.following is not None:
                channel, position = channel.following, 0
            elif channel.is_closed or self._closed:
                return
            else:
                await channel.more()

    def close(self) -> None:
        """End all followers, also those of turns that have not ended."""
        self._closed = True
        for channel in self._live.values():
            channel.wake()


def _size(event: TurnEvent) -> int:
    """Return the approximate memory of an event in bytes."""
    return _EVENT + sum(sys.getsizeof(str(value)) for value in event.data.values())
