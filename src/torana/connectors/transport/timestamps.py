"""Parse the timestamps of platforms."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def time_of(number: object, *, per_second: int = 1) -> datetime | None:
    """Return the time of a Unix timestamp, in units of 1/``per_second`` s; None if it is not valid."""
    try:
        return datetime.fromtimestamp(float(str(number)) / per_second, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_in_mail(date: str) -> datetime | None:
    """Return the time of a mail's ``Date`` header (RFC 5322, 3.3); None if it is not valid."""
    try:
        time = parsedate_to_datetime(date)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
