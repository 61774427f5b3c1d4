"""The time in places, and calculations with dates."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo

from dateutil.easter import easter
from pydantic_ai import RunContext

from torana.tools.base import ToolContext, ToolError, counted, tool
from torana.tools.builtin.timezones import zone_of

#: The maximum length of a date as text.
DATE_LIMIT = 60
#: The largest shift, in each unit.
SHIFT_LIMIT = 4_000_000

_NUMERIC = re.compile(r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})")
_WEEKDAY = re.compile(r"(?:on |this |next |last )?(?:mon|tues|wednes|thurs|fri|satur|sun)day")
_FEASTS = {
    "christmas": "25 december",
    "christmas day": "25 december",
    "christmas eve": "24 december",
    "xmas": "25 december",
    "x-mas": "25 december",
    "halloween": "31 october",
    "valentine's day": "14 february",
    "new year": "1 january",
    "new years": "1 january",
    "new year's day": "1 january",
    "new year's eve": "31 december",
}
_EASTER = frozenset({"easter", "easter sunday", "easter day"})


@tool(idempotent=True)
def current_time(ctx: RunContext[ToolContext], place: str = "") -> str:
    """Return the current time and date, here or in a place.

    Args:
        place: A city, a country, an IANA zone such as Europe/Rome, or UTC+2; empty for here.
    """
    now = ctx.deps.clock()
    zone = zone_of(place, now) if place.strip() else ctx.deps.timezone
    local = now.astimezone(zone)
    where = f" in {' '.join(place.split())}" if place.strip() else ""
    return f"It is {local:%H:%M} on {_long(local.date())}{where} ({_zone_name(zone, local)})."


@tool(idempotent=True)
def days_between(ctx: RunContext[ToolContext], start: str, end: str) -> str:
    """Count the days from one date to another. From Monday to Tuesday is one day.

    Args:
        start: A date such as 2026-12-24, "24 December", "today" or "in 3 weeks"; without a year the coming one,
            or the last one before the end.
        end: Another date; without a year the coming one, or the next one after the start.
    """
    first, last = _in_order(start, end, _now(ctx.deps))
    count = abs((last - first).days)
    back = "back " if last < first else ""
    return f"{counted(count, 'day')} from {_long(first)} {back}to {_long(last)}."


@tool(idempotent=True)
def shift_date(
    ctx: RunContext[ToolContext],
    start: str,
    years: int = 0,
    months: int = 0,
    weeks: int = 0,
    days: int = 0,
    past: bool = False,
) -> str:
    """Return the date and weekday some time after a date, or before it if the numbers are negative.

    Years and months come first and keep the day of the month, or take the last day of a shorter month.

    Args:
        start: A date such as 2026-12-24, "24 December" or "today".
        years: Years later.
        months: Months later.
        weeks: Weeks later.
        days: Days later.
        past: Use the last such date instead of the coming one, if the start has no year.
    """
    first = read_date(start, _now(ctx.deps), past=past)
    steps = {"year": years, "month": months, "week": weeks, "day": days}
    if max(map(abs, steps.values())) > SHIFT_LIMIT:
        raise ToolError(f"A date can be shifted by at most {SHIFT_LIMIT:,}; give a smaller number.")
    try:
        shifted = _months_later(first, years * 12 + months) + timedelta(weeks=weeks, days=days)
    except (ValueError, OverflowError):
        raise ToolError("The result lies outside the years 1 to 9999; give a smaller number.") from None
    return (
        f"{_distance(steps)} {_long(first)} is {_long(shifted)}."
        if any(steps.values())
        else f"It is {_long(first)}."
    )


def _distance(steps: Mapping[str, int]) -> str:
    """Return for example "2 months and 3 days before", or with both signs "1 month and -2 days from"."""
    taken = {unit: number for unit, number in steps.items() if number}
    if all(number > 0 for number in taken.values()):
        direction = "after"
    elif all(number < 0 for number in taken.values()):
        direction = "before"
        taken = {unit: -number for unit, number in taken.items()}
    else:
        direction = "from"
    return f"{' and '.join(counted(number, unit) for unit, number in taken.items())} {direction}"


def _months_later(start: date, months: int) -> date:
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise ValueError
    return start.replace(
        year=year, month=month + 1, day=min(start.day, calendar.monthrange(year, month + 1)[1])
    )


def _now(deps: ToolContext) -> datetime:
    return deps.clock().astimezone(deps.timezone)


def _in_order(start: str, end: str, now: datetime) -> tuple[date, date]:
    """Return both dates. If the end would come first, a date without a year moves to another year."""
    first, last = read_date(start, now), read_date(end, now)
    if last < first and read_date(start, now, past=True) != first:
        return read_date(start, datetime.combine(last, time()), past=True), last
    if last < first and read_date(end, now, past=True) != last:
        return first, read_date(end, datetime.combine(first, time()))
    return first, last


def read_date(text: str, now: datetime, *, past: bool = False) -> date:
    """Parse a date, relative to ``now``. Without a year it is the coming one, or the last one with ``past``.

    Today matches both. Raises ``ToolError`` if the text is not a date, or ambiguous.
    """
    phrase = " ".join(text[: DATE_LIMIT + 1].split()).lower().replace("’", "'")
    if len(phrase) > DATE_LIMIT:
        raise ToolError(f"A date has at most {DATE_LIMIT} characters; give a shorter one.")
    found = _numeric(phrase) or _in_words(
        _FEASTS.get(phrase, phrase), now.replace(tzinfo=None), "past" if past else "future"
    )
    if found is None:
        raise ToolError(f"“{phrase}” is not a date; write it as {now:%Y-%m-%d} or as {_short(now)}.")
    return found


def read_day(text: str, now: str) -> str:
    """Return ``read_date`` in ISO 8601, with arguments in JSON types: a worker process can call it."""
    return read_date(text, datetime.fromisoformat(now)).isoformat()


def _numeric(phrase: str) -> date | None:
    try:
        return date.fromisoformat(phrase.upper())
    except ValueError:
        match = _NUMERIC.fullmatch(phrase)
    if match is None:
        return None
    first, second, year = map(int, match.groups())
    readings = sorted({*_valid(year, second, first), *_valid(year, first, second)})
    if len(readings) > 1:
        raise ToolError(f"“{phrase}” is ambiguous; write {readings[0]} or {readings[1]}.")
    return readings[0] if readings else None


def _valid(year: int, month: int, day: int) -> list[date]:
    try:
        return [date(year, month, day)]
    except ValueError:
        return []


def _in_words(phrase: str, now: datetime, prefer: str) -> date | None:
    if phrase in _EASTER:
        return _easter(now, past=prefer == "past")
    # dateparser reads "9" as September and "2026-13-01" as 13 January; pure digits were parsed above.
    if not re.search(r"[a-z]", phrase):
        return None
    if _WEEKDAY.fullmatch(phrase):
        return _parse_date(phrase, now, prefer=prefer, parts=[])
    # On 20 November, "20 November" means today, which dateparser does not count as future.
    same_year = _parse_date(phrase, now, prefer="current_period", parts=["day", "month"])
    if same_year == now.date():
        return same_year
    return _parse_date(phrase, now, prefer=prefer, parts=["day", "month"])


def _easter(now: datetime, *, past: bool) -> date:
    """Return the next or the last Easter Sunday; today matches both."""
    today = now.date()
    days = [easter(now.year + step) for step in (-1, 0, 1)]
    return max(day for day in days if day <= today) if past else min(day for day in days if day >= today)


def _parse_date(phrase: str, now: datetime, *, prefer: str, parts: list[str]) -> date | None:
    import dateparser  # takes 0.1 s, so only on demand

    settings = {"RELATIVE_BASE": now, "PREFER_DATES_FROM": prefer, "REQUIRE_PARTS": parts}
    try:
        found = dateparser.parse(phrase, languages=["en"], settings=settings)
    except OverflowError:  # a weekday before the year 1
        return None
    return found.date() if found else None


def _long(day: date) -> str:
    return f"{day:%A}, {_short(day)}"


def _short(day: date) -> str:
    return f"{day.day} {day:%B} {day.year}"


def _zone_name(zone: tzinfo, local: datetime) -> str:
    offset = local.strftime("%z")
    utc = f"UTC{offset[:3]}:{offset[3:5]}"
    return f"{zone.key}, {utc}" if isinstance(zone, ZoneInfo) else utc
