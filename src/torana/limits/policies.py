"""Limits as written in the settings, such as ``500 messages/day``, and their time windows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal, cast

from torana.messages import MICRO

Unit = Literal["messages", "tokens", "usd", "turns"]
Period = Literal["minute", "day", "month"]
#: The subject of a limit; the first part of a policy's name.
Whose = Literal["user", "token", "global"]

#: Numbers in headers have at most 15 digits (RFC 8941); money is counted in micro-dollars.
_LARGEST = 10**15 - 1

#: The label of the limits that are counted in memory or in Redis.
MESSAGES_PER_MINUTE = "messages-minute"

_LIMIT = re.compile(
    r"(\d{1,15}(?:\.\d{1,6})?) (messages|tokens|usd)/(minute|day|month)|(\d{1,15}) (turns)", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An amount in a period, or a number of concurrent turns. Money is in micro-dollars."""

    unit: Unit
    quota: int
    period: Period | None = None

    @property
    def label(self) -> str:
        """Return the limit's part of a policy's name, such as ``tokens-day`` or ``turns``."""
        return self.unit if self.period is None else f"{self.unit}-{self.period}"

    @property
    def words(self) -> str:
        return self.amount(self.quota) + (f"/{self.period}" if self.period else "")

    @property
    def scale(self) -> int:
        """Return the number of counted units in one written unit: money is counted in micro-dollars."""
        return MICRO if self.unit == "usd" else 1

    def amount(self, number: int) -> str:
        if self.unit == "usd":
            return f"{number / MICRO:.6f}".rstrip("0").rstrip(".") + " usd"
        return f"{number} {self.unit}"


def parse_limit(text: str) -> Limit:
    """Parse a limit. Raises ``ValueError`` for invalid text and for zero."""
    found = _LIMIT.fullmatch(" ".join(text.split()))
    if found is None:
        raise ValueError(text)
    number, unit, period, turns, _ = found.groups()
    amount = Decimal(number or turns) * (MICRO if unit == "usd" else 1)
    if amount != int(amount) or not 1 <= amount <= _LARGEST:
        raise ValueError(text)
    return Limit(unit=cast("Unit", unit or "turns"), quota=int(amount), period=cast("Period | None", period))


def parse_limits(texts: Sequence[str]) -> list[Limit]:
    """Parse limits. If several have the same label, the strictest applies."""
    strictest: dict[str, Limit] = {}
    for limit in map(parse_limit, texts):
        known = strictest.setdefault(limit.label, limit)
        strictest[limit.label] = min(known, limit, key=lambda one: one.quota)
    return list(strictest.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits that are stored as rows: per user, per token and for the whole gateway."""

    per_user: Sequence[Limit] = ()
    per_token: Sequence[Limit] = ()
    overall: Sequence[Limit] = ()

    @property
    def all(self) -> list[Limit]:
        return [*self.per_user, *self.per_token, *self.overall]

    @property
    def bound_calls(self) -> bool:
        """Return whether tokens or money are limited, so that each model call needs a reservation."""
        return any(limit.unit in ("tokens", "usd") for limit in self.all)

    @property
    def bound_minutes(self) -> bool:
        """Return whether a limit has a period of a minute."""
        return any(limit.period == "minute" for limit in self.all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The usage rows of a period, from ``first`` to ``last``, and the end of the period.

    ``last`` is one row after the end, so that setting the clock back over the end releases nothing.
    """

    first: str
    last: str
    ends: datetime
    seconds: int


def window_of(period: Period, at: datetime) -> Window:
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case "minute":
            begins = at.replace(second=0, microsecond=0)
            ends = begins + timedelta(minutes=1)
            name = minute_of
        case "day":
            begins = midnight
            ends = begins + timedelta(days=1)
            name = day_of
        case "month":
            begins = midnight.replace(day=1)
            ends = (begins + timedelta(days=31)).replace(day=1)
            name = day_of
    seconds = int((ends - begins).total_seconds())
    return Window(first=name(begins), last=name(ends), ends=ends, seconds=seconds)


def day_of(at: datetime) -> str:
    """Return the period of a day, such as ``2026-11-20``."""
    return f"{at:%Y-%m-%d}"


def minute_of(at: datetime) -> str:
    """Return the period of a minute, such as ``2026-11-20T22:05``."""
    return f"{at:%Y-%m-%dT%H:%M}"
