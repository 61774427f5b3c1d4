"""When a platform says that something was said."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def time_of(number: object, *, per_second: int = 1) -> datetime | None:
    """The time of so many seconds, or parts of one, since 1970; None for what is no such number."""
    try:
        return datetime.fromtimestamp(float(str(number)) / per_second, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_in_mail(date: str) -> datetime | None:
    """The time that a mail's ``Date`` names (RFC 5322, 3.3); None where it is none."""
    try:
        time = parsedate_to_datetime(date)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
