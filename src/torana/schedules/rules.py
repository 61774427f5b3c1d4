"""When something is due: cron expressions and times of a wall clock, in a time zone.

The days and times of a rule are cronsim's, reckoned without a zone. Where the clock jumps, what happens follows
Debian's cron(8), as in cronsim: a rule with fixed hours and minutes is due once for each of its times, at the
end of the jump for one that is skipped and the first time for one that comes twice; a rule whose hours or
minutes begin with ``*`` goes by the time that really passes. cronsim's own reckoning with zones is not used: it
adds whole hours to a wall clock, and loses times where the clock jumps by half an hour (Australia/Lord_Howe).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from torana.errors import ScheduleInvalid

#: How far ahead anything may be due.
HORIZON = timedelta(days=3_653)
#: Characters of a cron expression.
RULE_LIMIT = 100

_SHAPE = re.compile(r"[0-9A-Za-z*/,#-]+(?: [0-9A-Za-z*/,#-]+){4}")
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


def normal(rule: str) -> str:
    """The cron expression in the one way that it is kept. Raises ``ScheduleInvalid`` for what is none.

    It has five fields; seconds, names such as ``@daily``, and days that no month has are refused.
    """
    told = " ".join(rule[: 2 * RULE_LIMIT].split()).upper()
    if len(told) > RULE_LIMIT or not _SHAPE.fullmatch(told):
        raise ScheduleInvalid(
            "A cron expression has five fields: minute, hour, day of the month, month and day of the week, "
            f"such as `30 9 * * MON-FRI`; it has at most {RULE_LIMIT} characters."
        )
    try:
        CronSim(told, datetime(2000, 1, 1))  # noqa: DTZ001 - a rule knows no zone
    except (CronSimError, ValueError, TypeError, AssertionError) as error:
        raise ScheduleInvalid(
            f"`{told}` is never due: {error or 'it cannot be read'}. Its fields are minute (0-59), hour "
            "(0-23), day of the month (1-31, as the months have them), month (1-12) and day of the week (0-7 "
            "or SUN-SAT)."
        ) from None
    return told


def smallest_gap(rule: str) -> timedelta:
    """The least time between two times of a day for which a rule is due, or between two days of it."""
    parsed = CronSim(rule, datetime(2000, 1, 1))  # noqa: DTZ001 - as above
    times = sorted(hour * 60 + minute for hour in parsed.hours for minute in parsed.minutes)
    times.append(times[0] + 24 * 60)
    return timedelta(minutes=min(later - earlier for earlier, later in pairwise(times)))


def next_due(rule: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """The first time behind ``after`` for which the rule is due, in UTC; None where none comes in time.

    It depends on nothing else, so that asked from any moment between two due times it gives the same one.
    """
    after = after.astimezone(UTC)  # elsewhere Python reckons with what the clock shows
    goes_by_time = any(field.startswith("*") for field in rule.split()[:2])
    try:
        due = (_next_in_time if goes_by_time else _next_on_the_clock)(rule, zone, after)
    except (StopIteration, OverflowError, ValueError):  # never, or behind the last year there is
        return None
    return due if due <= after + HORIZON else None


def instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """The moment, in UTC, at which a clock on the wall shows a time: the first one where it comes twice, the
    end of the jump where it is skipped.
    """
    while True:
        there = wall.replace(tzinfo=zone, fold=0)
        moment = there.astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == wall:
            return moment
        wall = wall.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _next_on_the_clock(rule: str, zone: ZoneInfo, after: datetime) -> datetime:
    """For fixed times: each is a moment of its own, however often the clock shows it."""
    for wall in CronSim(rule, _wall(after, zone)):
        moment = instant(wall, zone)
        if moment > after:  # not so while the clock shows again what it has shown already
            return moment
    raise StopIteration


def _next_in_time(rule: str, zone: ZoneInfo, after: datetime) -> datetime:
    """For what goes by the time that passes: from one change of the clock to the next."""
    while True:
        offset = _offset(after, zone)
        moment = (next(CronSim(rule, _wall(after, zone))) - offset).replace(tzinfo=UTC)
        change = _change(zone, after, min(moment, after + HORIZON))
        if change is None:
            return moment
        shown = _wall(change, zone)
        if next(CronSim(rule, shown - _SECOND)) == shown:
            return change
        after = change


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """The first second behind ``start``, and not behind ``end``, at which the zone has another offset."""
    before = _offset(start, zone)
    low = start
    while low < end:
        high = min(low + _DAY, end)
        if _offset(high, zone) == before:
            low = high
            continue
        while high - low > _SECOND:
            middle = low + (high - low) // 2
            if _offset(middle, zone) == before:
                low = middle
            else:
                high = middle
        return high.replace(microsecond=0)
    return None
