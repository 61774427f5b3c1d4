"""Publish the events of this replica's turns to other replicas over Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torana.messages import EventType
from torana.store.redis.server import RedisServer, RedisUnavailable
from torana.turns.events.entries import (
    ADD,
    NO_STREAM,
    NOT_ABOVE,
    Event,
    key_of,
    merge_deltas,
    write_events,
    write_id,
)
from torana.turns.events.log import EventLog
from torana.turns.events.worker import RedisWorker

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: Seconds in which events are collected for one entry. The first event after a pause does not wait.
_COLLECT = 0.02

#: Maximum bytes of the pending events of one turn. Above it, a snapshot of the whole text replaces them.
_PENDING = 65_536

#: A snapshot of the text replaces the earlier entries after this number of bytes (or after the size of the last
#: snapshot, if it is larger), and also after this number of entries.
_SNAPSHOT_BYTES = 262_144
_SNAPSHOT_ENTRIES = 1_000
_ENTRIES = 2 * _SNAPSHOT_ENTRIES

#: Seconds after the last event until Redis deletes the stream of a turn that no replica has ended.
_EXPIRY = 3_600

#: Maximum number of streams that wait for their deletion. Above it, Redis deletes them at their expiry.
_DELETIONS = 10_000

#: The approximate memory of an event without text.
_EVENT = 200


@dataclass(slots=True, kw_only=True)
class _Stream:
    """The pending events of one attempt, and the state of its stream."""

    attempt: int
    number: int = 0
    events: list[Event] = field(default_factory=list[Event])
    size: int = 0
    #: True if the next entry must be a snapshot: an earlier entry was not added, or too much text is pending.
    needs_snapshot: bool = False
    #: The size of the last snapshot, and the bytes and the entries since then.
    snapshot_bytes: int = 0
    added_bytes: int = 0
    added: int = 0
    ended: bool = False

    def append(self, type_: EventType, data: Mapping[str, Any]) -> None:
        if self.needs_snapshot and type_ == "message.delta":  # the snapshot has its text
            return
        self.events.append((type_, data))
        self.size += _EVENT + sum(len(str(value)) for value in data.values())
        if self.size > _PENDING:
            self.fall_back()

    def fall_back(self) -> None:
        """Replace the pending events with a snapshot, to be made when it is sent."""
        self.events, self.size, self.needs_snapshot = [], 0, True

    def note_sent(self, size: int, *, replaces: bool) -> None:
        """Clear the pending events, which were sent as an entry; ``replaces`` if the entry has a snapshot."""
        self.number += 1
        self.added = 0 if replaces else self.added + 1
        self.added_bytes = 0 if replaces else self.added_bytes + size
        self.snapshot_bytes = size if replaces else self.snapshot_bytes
        self.events, self.size, self.needs_snapshot = [], 0, False

    @property
    def is_long(self) -> bool:
        """Return whether a snapshot is shorter than the entries that it would replace."""
        return self.added_bytes > max(_SNAPSHOT_BYTES, self.snapshot_bytes) or self.added >= _SNAPSHOT_ENTRIES

    @property
    def has_pending(self) -> bool:
        return bool(self.events) or self.needs_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    id: str
    events: str
    #: True if the entry begins with a snapshot, so that earlier entries are not needed.
    replaces: bool


class EventPublisher(RedisWorker):
    """Adds the events of running turns to Redis, in the order of their recording.

    While Redis is slow or fails, at most ``_PENDING`` bytes of each turn are kept. Above this limit, a snapshot
    of the text replaces the events.
    """

    _name = "event publisher"

    def __init__(self, *, server: RedisServer, log: EventLog) -> None:
        self._server = server
        self._log = log
        self._streams: dict[str, _Stream] = {}
        #: The turns whose streams are to be deleted, the oldest first.
        self._deleted: dict[str, None] = {}
        self._due = asyncio.Event()

    def begin(self, turn_id: str) -> None:
        """Begin the stream of an attempt that the log has opened."""
        attempt = self._log.attempt(turn_id)
        if attempt is None:
            return
        self._deleted.pop(turn_id, None)  # a retried turn
        self._streams[turn_id] = _Stream(attempt=attempt)
        if attempt > 1:
            self.publish(turn_id, "turn.resumed", {"attempt": attempt, "text": self._log.text(turn_id)})

    def publish(self, turn_id: str, type_: EventType, data: Mapping[str, Any]) -> None:
        if (stream := self._streams.get(turn_id)) is not None:
            stream.append(type_, data)
            self._due.set()

    def end(self, turn_id: str) -> None:
        """Add the last events of a turn, and delete its stream: the row of the turn has the reply."""
        if (stream := self._streams.get(turn_id)) is not None:
            stream.ended = True
        if len(self._deleted) < _DELETIONS:
            self._deleted[turn_id] = None
        self._due.set()

    async def _work(self) -> None:
        await self._server.probe("publish")
        self._due.set()  # events may be pending after a failure
        while True:
            await self._due.wait()
            self._due.clear()
            await self._send()
            await asyncio.sleep(_COLLECT)

    async def _send(self) -> None:
        """Send all pending events and deletions in one round trip. Raises ``RedisUnavailable``."""
        entries = {turn_id: self._take(turn_id, stream) for turn_id, stream in self._streams.items()}
        entries = {turn_id: entry for turn_id, entry in entries.items() if entry is not None}
        sent = {turn_id: self._streams[turn_id] for turn_id in entries}
        deleted = list(self._deleted)
        self._streams = {turn_id: stream for turn_id, stream in self._streams.items() if not stream.ended}
        if not entries and not deleted:
            return
        try:
            async with self._server.use("publish") as client:
                lengths = await _execute(client, entries, deleted)
        except RedisUnavailable:
            for stream in sent.values():
                stream.fall_back()
            raise
        for turn_id in deleted:
            self._deleted.pop(turn_id, None)
        for (turn_id, stream), length in zip(sent.items(), lengths, strict=True):
            if length is None:  # usually because another replica continues the turn
                self._streams.pop(turn_id, None)
            # Redis has lost the earlier entries.
            elif length == 1 < stream.number and not entries[turn_id].replaces:
                stream.fall_back()
                self._due.set()

    def _take(self, turn_id: str, stream: _Stream) -> _Entry | None:
        """Return the pending events as an entry, and clear them; None if there are none."""
        if not stream.has_pending or (stream.ended and stream.needs_snapshot):
            return None
        events: Sequence[Event] = stream.events
        if replaces := stream.needs_snapshot or (stream.is_long and not stream.ended):
            others = [event for event in events if event[0] != "message.delta"]
            events = [("message.snapshot", {"text": self._log.text(turn_id)}), *others]
        document = write_events(merge_deltas(events))
        stream.note_sent(len(document), replaces=replaces)
        return _Entry(id=write_id(stream.attempt, stream.number), events=document, replaces=replaces)


async def _execute(client: Redis, entries: Mapping[str, _Entry], deleted: Sequence[str]) -> list[int | None]:
    """Return the length of each stream after its entry was added.

    The length is None if Redis refused the entry: it is too old, or another program has written the key.
    """
    pipeline = client.pipeline(transaction=False)
    for turn_id, entry in entries.items():
        replaces = int(entry.replaces)
        pipeline.eval(ADD, 1, key_of(turn_id), entry.id, entry.events, replaces, _ENTRIES, _EXPIRY)
    if deleted:
        pipeline.unlink(*map(key_of, deleted))
    lengths: list[int | None] = []
    for result in await pipeline.execute(raise_on_error=False):
        if isinstance(result, Exception) and not any(one in str(result) for one in (NOT_ABOVE, NO_STREAM)):
            raise result
        lengths.append(None if isinstance(result, Exception) else int(result))
    return lengths[: len(entries)]
