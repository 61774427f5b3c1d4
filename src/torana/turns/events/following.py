"""Follow the events of turns that other replicas run, over Redis."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torana.aio import end_task
from torana.store.redis.server import RedisServer
from torana.turns.events.entries import (
    NO_STREAM,
    EntryId,
    Event,
    key_of,
    read_events,
    read_id,
    turn_of,
    write_id,
)
from torana.turns.events.log import EventLog
from torana.turns.events.worker import RedisWorker

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

#: A channel without messages. The subscription shows that the connection works before a turn is followed.
_IDLE = "torana:idle"

#: Seconds without a message after which the connection is checked.
_QUIET_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Position:
    """The last entry of a turn that was read, and whether the log has the text before the next one."""

    id: EntryId = (0, 0)
    complete: bool = False

    def precedes(self, entry: EntryId) -> bool:
        """Return whether there is no entry between this one and ``entry``."""
        (attempt, number), (last_attempt, last) = entry, self.id
        return number == 1 if attempt > last_attempt else number == last + 1


class EventFollower(RedisWorker):
    """Adds the events of followed turns to the log, each once and in order.

    One connection listens to the channels of all followed turns. After a subscription and after a gap the
    stream of the turn is read. If its first entries are gone, deltas are left out until a snapshot comes.
    """

    _name = "event follower"

    def __init__(self, *, server: RedisServer, log: EventLog) -> None:
        self._server = server
        self._log = log
        self._followed: dict[str, _Position] = {}
        #: Set when turns were added or removed.
        self._changed = asyncio.Event()

    def follow(self, turn_id: str) -> None:
        """Follow a turn until ``end``. The log has opened an attempt of it."""
        if turn_id not in self._followed:
            self._followed[turn_id] = _Position()
            self._changed.set()

    def end(self, turn_id: str) -> None:
        if self._followed.pop(turn_id, None) is not None:
            self._changed.set()

    async def _work(self) -> None:
        async with self._server.use("follow") as client:
            await self._listen(client)

    async def _listen(self, client: Redis) -> None:
        """Add events until the connection is lost."""
        channels: PubSub = cast("Any", client).pubsub()
        await channels.subscribe(_IDLE)
        self._changed.set()
        subscribing = asyncio.create_task(self._keep_subscribing(channels), name="event subscriptions")
        try:
            while not subscribing.done():
                message = cast("dict[str, Any] | None", await channels.get_message(timeout=_QUIET_SECONDS))
                if message is not None:
                    await self._read(client, message)
            await subscribing
        finally:
            await end_task(subscribing)
            await channels.aclose()

    async def _keep_subscribing(self, channels: PubSub) -> None:
        subscribed: set[str] = set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            followed = set(self._followed)
            if added := followed - subscribed:
                await channels.subscribe(*map(key_of, added))
            if removed := subscribed - followed:
                await cast("Any", channels).unsubscribe(*map(key_of, removed))
            subscribed = followed

    async def _read(self, client: Redis, message: dict[str, Any]) -> None:
        channel: bytes = message["channel"]
        if channel == _IDLE.encode():
            self._server.note_success("follow")
            return
        turn_id = turn_of(channel)
        if turn_id not in self._followed:
            return
        if message["type"] == "subscribe":
            await self._catch_up(client, turn_id)
        elif message["type"] == "message":
            id_, _, document = message["data"].partition(b" ")
            if not self._add(turn_id, id_, document, only_next=True):
                await self._catch_up(client, turn_id)
                self._add(turn_id, id_, document)

    async def _catch_up(self, client: Redis, turn_id: str) -> None:
        """Add the events of the stream after the last entry that was read."""
        from redis import ResponseError

        attempt, number = self._followed[turn_id].id
        try:
            found = await client.xrange(key_of(turn_id), min=write_id(attempt, number + 1))
        except ResponseError as error:
            if NO_STREAM not in str(error):
                raise
            _log.debug("shared_events_unreadable", extra={"turn_id": turn_id})
            return
        for id_, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", found):
            self._add(turn_id, id_, fields.get(b"events", b""))

    def _add(self, turn_id: str, id_: bytes, document: bytes, *, only_next: bool = False) -> bool:
        """Add the events of an entry to the log, unless it is older than those that the log has.

        With ``only_next``, return false instead if entries before this one are missing.
        """
        position, opened = self._followed.get(turn_id), self._log.attempt(turn_id)
        if position is None or opened is None:
            return True
        try:
            entry, events = read_id(id_), read_events(document)
        except ValueError:
            _log.debug("shared_events_unreadable", extra={"turn_id": turn_id})
            return True
        if entry <= position.id or entry[0] < opened:
            return True
        follows = position.precedes(entry)
        if only_next and not follows:
            return False
        position.complete = follows and (position.complete or entry[1] == 1)
        position.id = entry
        resumes = entry[0] > opened
        if resumes:
            self._log.open(turn_id, attempt=entry[0])
            if not events or events[0][0] != "turn.resumed":
                self._log.append(turn_id, "turn.resumed", {"attempt": entry[0], "text": ""})
        for event in events:
            self._append(turn_id, position, event, resumes=resumes)
        return True

    def _append(self, turn_id: str, position: _Position, event: Event, *, resumes: bool) -> None:
        type_, data = event
        if type_ == "turn.accepted" or (type_ == "message.delta" and not position.complete):
            return
        if type_ in ("turn.resumed", "message.snapshot"):
            position.complete = True
            if type_ == "message.snapshot" or not resumes:
                if data["text"] == self._log.text(turn_id):
                    return
                type_, data = "message.snapshot", {"text": data["text"]}
        self._log.append(turn_id, type_, data)
