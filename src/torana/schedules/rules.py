"""Due times of cron expressions and of wall-clock times, in a time zone.

cronsim parses a rule and finds its days. At a change of the clock, the rules of Debian's cron(8) apply, as in
cronsim: a rule with fixed hours and minutes is due once for each of its times, for a skipped time at the end of
the change, and for a repeated time at its first occurrence. A rule whose hours or minutes begin with ``*``
follows elapsed time. cronsim's own support for zones is not used: it adds whole hours to a wall clock, and
loses times where the clock changes by half an hour (Australia/Lord_Howe).

The search for a due time ends at ``HORIZON``. cronsim itself would search for fifty years after each time that
the clock skips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from torana.errors import ScheduleInvalid

#: The maximum time until a schedule is due.
HORIZON = timedelta(days=3_653)
#: The maximum length of a cron expression.
RULE_LIMIT = 100

_SHAPE = re.compile(r"[0-9A-Za-z*/,#-]+(?: [0-9A-Za-z*/,#-]+){4}")
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


def normal(rule: str) -> str:
    """Return the cron expression in its canonical form. Raises ``ScheduleInvalid`` for an invalid one.

    It must have five fields. Seconds, names such as ``@daily``, and days that no month has are refused.
    """
    expression = " ".join(rule[: 2 * RULE_LIMIT].split()).upper()
    if len(expression) > RULE_LIMIT or not _SHAPE.fullmatch(expression):
        raise ScheduleInvalid(
            "A cron expression has five fields: minute, hour, day of the month, month and day of the week, "
            f"such as `30 9 * * MON-FRI`; it has at most {RULE_LIMIT} characters."
        )
    try:
        _parse(expression)
    except (CronSimError, ValueError, TypeError, AssertionError) as error:
        raise ScheduleInvalid(
            f"`{expression}` is never due: {error or 'it cannot be parsed'}. Its "
            "fields are minute (0-59), hour (0-23), day of the month (1-31), month (1-12) and "
            "day of the week (0-7 or SUN-SAT)."
        ) from None
    return expression


def smallest_gap(rule: str) -> timedelta:
    """Return the shortest time between two due times of the same day or of consecutive days."""
    times = [datetime.combine(date.min, at) for at in _times(_parse(rule))]
    times.append(times[0] + _DAY)
    return min(later - earlier for earlier, later in pairwise(times))


def next_due(rule: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first time after ``after`` at which the rule is due, in UTC; None if it is after ``HORIZON``.

    The result depends only on the arguments, and is the same for all moments between two due times.
    """
    after = after.astimezone(UTC)  # in another zone, Python calculates with wall-clock times
    follows_elapsed_time = any(field.startswith("*") for field in rule.split()[:2])
    try:
        end = after + HORIZON
        search = _next_by_elapsed_time if follows_elapsed_time else _next_on_the_clock
        due = search(_parse(rule), zone, after, end)
    except (OverflowError, ValueError):  # after the last year of datetime
        return None
    return due if due is not None and due <= end else None


def instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment, in UTC, at which a wall clock shows a time.

    For a repeated time it is the first occurrence, for a skipped time the end of the change.
    """
    while True:
        local = wall.replace(tzinfo=zone, fold=0)
        moment = local.astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == wall:
            return moment
        wall = wall.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _next_on_the_clock(rule: CronSim, zone: ZoneInfo, after: datetime, end: datetime) -> datetime | None:
    """Return the next due time of a rule with fixed times. A time that the clock shows twice is due once."""
    moments = (instant(wall, zone) for wall in _wall_times(rule, _wall(after, zone), _wall(end, zone)))
    # False for a time that the clock shows for the second time.
    return next((moment for moment in moments if moment > after), None)


def _next_by_elapsed_time(rule: CronSim, zone: ZoneInfo, after: datetime, end: datetime) -> datetime | None:
    """Return the next due time of a rule that follows elapsed time."""
    searched = wall = _wall(after, zone)
    while after < end:
        shown = _wall(after, zone)
        # A clock change does not start a new search if the found time is still ahead, and all times before it
        # have been searched.
        if not searched <= shown < wall:
            found = next(_wall_times(rule, shown, _wall(end, zone)), None)
            if found is None:
                return None
            searched, wall = shown, found
        moment = (wall - _offset(after, zone)).replace(tzinfo=UTC)
        change = _change(zone, after, min(moment, end))
        if change is None:
            return moment
        if _is_due(rule, _wall(change, zone)):
            return change
        after = change
    return None


def _parse(rule: str) -> CronSim:
    return CronSim(rule, datetime(2000, 1, 1))  # noqa: DTZ001 - a rule knows no zone


def _times(rule: CronSim) -> list[time]:
    return [time(hour, minute) for hour in sorted(rule.hours) for minute in sorted(rule.minutes)]


def _is_due(rule: CronSim, wall: datetime) -> bool:
    on_time = wall.second == 0 and wall.minute in rule.minutes and wall.hour in rule.hours
    return on_time and _is_due_on(rule, wall.date())


def _is_due_on(rule: CronSim, day: date) -> bool:
    return day.month in rule.months and rule.match_day(day)


def _wall_times(rule: CronSim, after: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the times of a rule on a wall clock after ``after``, until the day after ``end``."""
    times = _times(rule)
    for number in range((end - after).days + 2):
        day = after.date() + number * _DAY
        if _is_due_on(rule, day):
            walls = (datetime.combine(day, at) for at in times)
            yield from (wall for wall in walls if wall > after)


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """Return the first second after ``start``, and not after ``end``, with another UTC offset, or None."""
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
