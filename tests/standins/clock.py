"""A clock that tests set."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    now: datetime = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def set(self, at: str) -> None:
        """Set the time, which is written in UTC without its zone."""
        self.now = datetime.fromisoformat(at).replace(tzinfo=UTC)

    def on(self, **ahead: float) -> None:
        """Move the clock forward or back by these seconds, minutes and so on."""
        self.now += timedelta(**ahead)
