"""Exchange the activity of all replicas through the announcements of their database."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, TypeAlias, cast, get_args

from torana.aio import end_task
from torana.errors import StoreUnavailable
from torana.store.engine.database import Database
from torana.store.engine.postgres.announcements import LONGEST_ACTIVITY, announce_activity
from torana.turns.events.activity import Activity, ActivityEvent, ActivityType

#: Seconds in which events are collected for one announcement. An event after a pause waits for them, too.
_COLLECT = 0.1

#: Maximum number of events that wait for the database. Above it, a ``reset`` replaces them.
_PENDING = 1_000

#: Seconds between two attempts while the database fails.
_RETRY = 1.0

#: An announcement without events asks the other replicas to announce theirs.
_REQUEST = "[]"

#: Seconds between two requests of a replica that has readers, and for which a request holds.
_ASK, _HOLD = 10.0, 30.0

_TYPES = frozenset(get_args(ActivityType))

_log = logging.getLogger(__name__)

#: The type, the owner and the data of an event.
_Entry: TypeAlias = tuple[ActivityType, str | None, dict[str, Any]]

_RESET: _Entry = ("reset", None, {})


class ActivitySharing:
    """Announces the events of this replica, and adds those of other replicas to its activity.

    Events are announced only while another replica has readers. They are announced in their order, about 0.1
    seconds late. A ``reset`` replaces events that were not announced, or could not be.
    """

    def __init__(self, *, database: Database, activity: Activity) -> None:
        self._database = database
        self._activity = activity
        self._pending: list[_Entry] = []
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: The monotonic time until which another replica wants the events.
        self._wanted_until = 0.0
        #: Events were not announced because no replica wanted them.
        self._withheld = False

    def start(self) -> None:
        self._activity.on_publish = self._add
        self._tasks = [
            asyncio.create_task(self._keep_sending(), name="activity"),
            asyncio.create_task(self._keep_asking(), name="activity requests"),
        ]

    async def stop(self) -> None:
        """Announce the last events."""
        for task in self._tasks:
            await end_task(task)
        if self._tasks:
            await self._send()

    def begin(self) -> None:
        """Continue after a time without announcements: requests of other replicas and events may be missing."""
        self._activity.reset()
        self._note_request()

    def receive(self, text: str) -> None:
        """Follow another replica's request, or add the events of its announcement."""
        if text == _REQUEST:
            self._note_request()
        for type_, owner, data in _read(text):
            if type_ == "reset":
                self._activity.reset()
            else:
                self._activity.add(type_, owner, data)

    def note_missed_events(self) -> None:
        """Send a ``reset`` to the readers of all replicas: events of an ended replica may be missing."""
        self._activity.reset()
        self._pending = [_RESET]
        self._due.set()

    def _note_request(self) -> None:
        self._wanted_until = time.monotonic() + _HOLD
        if self._withheld:
            self._withheld = False
            self._pending = [_RESET]
            self._due.set()

    def _add(self, event: ActivityEvent) -> None:
        if time.monotonic() > self._wanted_until:
            self._withheld = True
            return
        if len(self._pending) >= _PENDING:
            self._pending = [_RESET]
        else:
            self._pending.append((event.type, event.owner, dict(event.data)))
        self._due.set()

    async def _keep_sending(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(_COLLECT)
            if not await self._send():
                await asyncio.sleep(_RETRY)

    async def _keep_asking(self) -> None:
        while True:
            await self._activity.followed.wait()
            announced = await self._announce([_REQUEST])
            await asyncio.sleep(_ASK if announced else _RETRY)

    async def _send(self) -> bool:
        """Announce the pending events; return False if the database failed."""
        self._due.clear()
        pending, self._pending = self._pending, []
        if not pending or await self._announce(list(_write(pending))):
            return True
        self._pending = [_RESET]
        self._due.set()
        return False

    async def _announce(self, texts: Sequence[str]) -> bool:
        """Return False if the database failed."""
        try:
            await self._database.read(partial(announce_activity, texts=texts))
        except StoreUnavailable:
            return False
        except Exception:  # noqa: BLE001 - later events must be announced
            _log.exception("activity_not_announced")
            return False
        return True


def _write(events: Sequence[_Entry]) -> Generator[str]:
    """Yield JSON arrays of events that are each short enough for an announcement."""
    texts: list[str] = []
    size = 2
    for event in events:
        text = json.dumps(event, separators=(",", ":"))
        if len(text) > LONGEST_ACTIVITY - 2:
            text = json.dumps(_RESET)
        if size + len(text) > LONGEST_ACTIVITY:
            yield f"[{','.join(texts)}]"
            texts, size = [], 2
        texts.append(text)
        size += len(text) + 1
    yield f"[{','.join(texts)}]"


def _read(text: str) -> list[_Entry]:
    """Return the events of an announcement; none if another program has sent it."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    events = cast("list[object]", found) if isinstance(found, list) else []
    if not isinstance(found, list) or not all(map(_is_entry, events)):
        _log.warning("activity_not_read")
        return []
    return cast("list[_Entry]", events)


def _is_entry(found: object) -> bool:
    match found:
        case [str(type_), str() | None, dict()]:
            return type_ in _TYPES
        case _:
            return False
