"""The event log: append, replay, follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from torana.messages import EventType, TurnEvent


class EventLog(ABC):
    """Stores the events of live turns and of recently ended turns.

    A turn's row has its result even if its events are lost. Event ids are ``<attempt>-<n><origin>`` with ``n``
    from 1 without gaps, in the order of appending. The origin identifies the log, because the logs of two
    replicas contain different events of the same attempt. It is empty if there is only one log.
    """

    @abstractmethod
    def open(self, turn_id: str, *, attempt: int) -> None:
        """Begin the events of an attempt, and drop those of an earlier attempt."""

    @abstractmethod
    def append(self, turn_id: str, type_: EventType, data: Mapping[str, Any]) -> None:
        """Add an event without waiting for slow readers. A terminal event is the last one."""

    @abstractmethod
    def has_events(self, turn_id: str) -> bool:
        """Return whether the log has events of this turn."""

    @abstractmethod
    def attempt(self, turn_id: str) -> int | None:
        """Return the attempt whose events are open; None for an ended or unknown turn."""

    @abstractmethod
    def text(self, turn_id: str) -> str:
        """Return all text of the open attempt so far."""

    @abstractmethod
    def forget(self, turn_id: str) -> None:
        """Drop the events of an ended turn. Other turns are not changed."""

    @abstractmethod
    def follow(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Replay the events after ``after`` (all if it is unknown), then follow until the terminal event.

        If events were dropped because of their size, a ``message.snapshot`` with all text so far replaces them.
        If ``after`` is an event of another log, an empty ``message.snapshot`` comes first: the reader drops the
        text of that log. An unknown turn has no events.
        """

    @abstractmethod
    def close(self) -> None:
        """End all followers, also those of turns that have not ended."""
