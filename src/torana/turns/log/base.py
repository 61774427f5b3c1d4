"""The event log: append, replay, follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from torana.messages import EventType, TurnEvent


class EventLog(ABC):
    """Keeps the events of live turns and of those just ended. What it loses, the turn's row still knows.

    Event ids are ``<attempt>-<n>`` with ``n`` from 1 without gaps, in the order of appending.
    """

    @abstractmethod
    def open(self, turn_id: str, *, attempt: int) -> None:
        """Begin the events of an attempt; those of an earlier one are gone."""

    @abstractmethod
    def append(self, turn_id: str, type_: EventType, data: Mapping[str, Any]) -> None:
        """Add an event of the attempt at once; a slow reader never holds it up. A terminal one is the last."""

    @abstractmethod
    def knows(self, turn_id: str) -> bool:
        """Whether there are events of this turn to follow."""

    @abstractmethod
    def forget(self, turn_id: str) -> None:
        """Drop the events of a turn that has ended; one that has not, or is not known, is left as it is."""

    @abstractmethod
    def follow(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Replay what came after the event ``after`` (all, when it is None or unknown), then follow.

        Ends after the terminal event. Where events were dropped for their size, a ``message.snapshot`` with
        all text so far takes their place. A turn that is not known has no events and ends at once.
        """

    @abstractmethod
    def close(self) -> None:
        """End every follower, also of turns that have not ended: no more events will come."""
