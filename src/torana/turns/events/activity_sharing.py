"""Exchange the activity of all replicas through the announcements of their database."""

from __future__ import annotations

import asyncio
import json
import logging
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

_TYPES = frozenset(get_args(ActivityType))

_log = logging.getLogger(__name__)

#: The type, the owner and the data of an event.
_Entry: TypeAlias = tuple[ActivityType, str | None, dict[str, Any]]

_RESET: _Entry = ("reset", None, {})


class ActivitySharing:
    """Announces the events of this replica, and adds those of other replicas to its activity.

    Events are announced in their order, about 0.1 seconds late. A ``reset`` replaces events that could not be
    announced.
    """

    def __init__(self, *, database: Database, activity: Activity) -> None:
        self._database = database
        self._activity = activity
        self._pending: list[_Entry] = []
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._activity.on_publish = self._add
        self._task = asyncio.create_task(self._keep_sending(), name="activity")

    async def stop(self) -> None:
        """Announce the last events."""
        if self._task is not None:
            await end_task(self._task)
            await self._send()

    def receive(self, events: str) -> None:
        """Add the events of another replica's announcement. An announcement without events is ignored."""
        for type_, owner, data in _read(events):
            if type_ == "reset":
                self._activity.reset()
            else:
                self._activity.add(type_, owner, data)

    def note_missed_events(self) -> None:
        """Send a ``reset`` to the readers of all replicas: events of an ended replica may be missing."""
        self._activity.reset()
        self._pending = [_RESET]
        self._due.set()

    def _add(self, event: ActivityEvent) -> None:
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

    async def _send(self) -> bool:
        """Announce the pending events; return False if the database failed."""
        self._due.clear()
        pending, self._pending = self._pending, []
        if not pending:
            return True
        try:
            await self._database.read(partial(announce_activity, texts=list(_write(pending))))
        except StoreUnavailable:
            pass
        except Exception:  # noqa: BLE001 - later events must be announced
            _log.exception("activity_not_announced")
        else:
            return True
        self._pending = [_RESET]
        self._due.set()
        return False


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
