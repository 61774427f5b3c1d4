"""Limits as they are written in the settings, such as ``500 messages/day``, and the windows they are of."""

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
#: Whose limit it is; the first part of a policy's name.
Whose = Literal["user", "token", "global"]

#: Numbers in headers have at most 15 digits (RFC 8941); money is counted in micro-dollars.
_LARGEST = 10**15 - 1

_LIMIT = re.compile(
    r"(\d{1,15}(?:\.\d{1,6})?) (messages|tokens|usd)/(minute|day|month)|(\d{1,15}) (turns)", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """So much of something in a period, or so many turns at once. Money is in micro-dollars."""

    unit: Unit
    quota: int
    period: Period | None = None

    @property
    def label(self) -> str:
        """Its part of a policy's name, such as ``tokens-day`` or ``turns``."""
        return self.unit if self.period is None else f"{self.unit}-{self.period}"

    @property
    def words(self) -> str:
        """As it is written in the settings."""
        return self.amount(self.quota) + (f"/{self.period}" if self.period else "")

    @property
    def scale(self) -> int:
        """How many of what is counted are one of what is written: money is counted in micro-dollars."""
        return MICRO if self.unit == "usd" else 1

    def amount(self, number: int) -> str:
        """So much of what it limits, in words."""
        if self.unit == "usd":
            return f"{number / MICRO:.6f}".rstrip("0").rstrip(".") + " usd"
        return f"{number} {self.unit}"


def parse_limit(text: str) -> Limit:
    """The limit that a text stands for. Raises ``ValueError`` where it stands for none, or for nothing."""
    found = _LIMIT.fullmatch(" ".join(text.split()))
    if found is None:
        raise ValueError(text)
    number, unit, period, turns, _ = found.groups()
    amount = Decimal(number or turns) * (MICRO if unit == "usd" else 1)
    if amount != int(amount) or not 1 <= amount <= _LARGEST:
        raise ValueError(text)
    return Limit(unit=cast("Unit", unit or "turns"), quota=int(amount), period=cast("Period | None", period))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits of the gateway that are kept as rows: of each user, of each token, and of all together."""

    per_user: Sequence[Limit] = ()
    per_token: Sequence[Limit] = ()
    overall: Sequence[Limit] = ()

    @property
    def all(self) -> list[Limit]:
        """Every one."""
        return [*self.per_user, *self.per_token, *self.overall]

    @property
    def bound_calls(self) -> bool:
        """Whether tokens or money are limited, so that something has to be held back for a model call."""
        return any(limit.unit in ("tokens", "usd") for limit in self.all)

    @property
    def bound_minutes(self) -> bool:
        """Whether a limit needs rows of minutes."""
        return any(limit.period == "minute" for limit in self.all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rows of a period that a moment is in: from ``first`` to ``last``, and the moment it ends.

    ``last`` is one row behind the end, so that a clock that is set back over the edge frees nothing.
    """

    first: str
    last: str
    ends: datetime
    seconds: int


def window_of(period: Period, at: datetime) -> Window:
    """The window of a moment in UTC."""
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
    """The row of a moment's day, such as ``2026-11-20``."""
    return f"{at:%Y-%m-%d}"


def minute_of(at: datetime) -> str:
    """The row of a moment's minute, such as ``2026-11-20T22:05``."""
    return f"{at:%Y-%m-%dT%H:%M}"
