"""A clock that is set by hand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: datetime = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def set(self, at: str) -> None:
        """Show that time, which is written without its zone, UTC."""
        self.now = datetime.fromisoformat(at).replace(tzinfo=UTC)

    def on(self, **ahead: float) -> None:
        """Turn it on, or back, by so many seconds, minutes …"""
        self.now += timedelta(**ahead)
