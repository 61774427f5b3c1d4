"""Due times of rules, compared with a wall clock that is checked every minute."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from torana.errors import ScheduleInvalid
from torana.schedules.rules import HORIZON, next_due, normal, smallest_gap

BERLIN, LORD_HOWE = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")
ZONES = (BERLIN, LORD_HOWE, ZoneInfo("America/St_Johns"), ZoneInfo("Asia/Kolkata"), ZoneInfo("UTC"))

#: Days of 2026 on which the clocks of these zones jump, and a day on which they do not.
JUMPS = [(2026, 3, 29), (2026, 10, 25), (2026, 4, 5), (2026, 10, 4), (2026, 3, 8), (2026, 11, 1), (2026, 6, 1)]


def due_times(rule: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield all due times after a moment, each computed from the one before."""
    while (due := next_due(rule, zone, after)) is not None:
        yield due
        after = due


def local_due_times(rule: str, zone: str, start: str, count: int) -> list[str]:
    """Return the next due times in local time, with offset."""
    there = ZoneInfo(zone)
    after = datetime.fromisoformat(start).replace(tzinfo=there)
    found = islice(due_times(rule, there, after), count)
    return [f"{moment.astimezone(there):%d %H:%M %z}" for moment in found]


@pytest.mark.parametrize(
    ("rule", "zone", "start", "due"),
    [
        # A time that is skipped in spring, and one that occurs twice in autumn.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        # Two times are skipped together, and the end of the jump is due itself: that is one due time.
        ("0,30 2-3 * * *", "Europe/Berlin", "2026-03-29 00:00", ["29 03:00 +0200", "29 03:30 +0200"]),
        # Intervals follow elapsed time: no hour is lost and none is doubled.
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25 01:45",
            ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"],
        ),
        ("0 * * * *", "Europe/Berlin", "2026-03-29 00:30", ["29 01:00 +0100", "29 03:00 +0200"]),
        # A clock that jumps by half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03 12:00", ["04 02:30 +1100", "05 02:15 +1100"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04 12:00", ["05 01:45 +1100", "06 01:45 +1030"]),
        ("0 */3 * * *", "Australia/Lord_Howe", "2026-10-03 23:30", ["04 00:00 +1030", "04 03:00 +1100"]),
        # A date that most years do not have, and the last day of a month.
        ("0 9 29 2 *", "Asia/Kolkata", "2026-01-01 00:00", ["29 09:00 +0530", "29 09:00 +0530"]),
        ("0 9 L * *", "UTC", "2026-01-30 00:00", ["31 09:00 +0000", "28 09:00 +0000"]),
        # A date that the zone skipped: it is due at the start of the next day.
        (
            "0 12 * * *",
            "Pacific/Apia",
            "2011-12-29 00:00",
            ["29 12:00 -1000", "31 00:00 +1400", "31 12:00 +1400"],
        ),
    ],
)
def test_due_times_follow_clock_jumps(rule: str, zone: str, start: str, due: list[str]) -> None:
    assert local_due_times(rule, zone, start, len(due)) == due


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    """Return a strategy for a field that lists its values."""
    return st.lists(st.integers(low, high), min_size=1, max_size=3, unique=True).map(
        lambda values: ",".join(map(str, sorted(values)))
    )


MINUTES = st.one_of(st.just("*"), st.sampled_from(["*/5", "*/7", "*/20"]), numbers(0, 59))
HOURS = st.one_of(st.just("*"), st.sampled_from(["*/2", "*/3", "1-3"]), numbers(0, 23), numbers(0, 3))
DAYS = st.one_of(
    st.just("*"), st.just("*"), numbers(1, 31).filter(lambda days: min(map(int, days.split(","))) < 29)
)
WEEKDAYS = st.one_of(st.just("*"), st.just("*"), numbers(0, 6))
STARTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1))  # noqa: DTZ001 - of whichever zone
RULES = st.tuples(MINUTES, HOURS, DAYS, st.just("*"), WEEKDAYS).map(" ".join)


def minutes_of(rule: str, zone: ZoneInfo, start: datetime, hours: int) -> list[datetime]:
    """Return every minute whose wall time matches the rule, with cron's treatment of clock jumps."""
    fixed = not any(field.startswith("*") for field in rule.split()[:2])
    found: list[datetime] = []
    seen: set[datetime] = set()
    # Start earlier, for times shown before the clock was set back.
    before = start - timedelta(hours=3)
    last = _wall(before - timedelta(minutes=1), zone)
    minutes = (hours + 3) * 60
    jump = timedelta(hours=3)  # at most
    matching = _matching(rule, last - jump, _wall(before + timedelta(minutes=minutes), zone) + jump)
    for minute in range(minutes):
        moment = before + timedelta(minutes=minute)
        wall = _wall(moment, zone)
        times = [wall]
        if fixed and wall - last > timedelta(minutes=1):  # skipped times are due now
            times += [last + timedelta(minutes=n) for n in range(1, (wall - last) // timedelta(minutes=1))]
        due = any(time in matching and not (fixed and time in seen) for time in times)
        seen |= set(times)
        last = wall
        if due and moment > start:
            found.append(moment)
    return found


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _matching(rule: str, after: datetime, until: datetime) -> set[datetime]:
    """Return the wall times that match the rule."""
    return set(takewhile(lambda wall: wall <= until, CronSim(rule, after)))


@given(rule=RULES, zone=st.sampled_from(ZONES), day=st.sampled_from(JUMPS), hour=st.integers(-30, 6))
def test_each_matching_wall_time_is_due_once(
    rule: str, zone: ZoneInfo, day: tuple[int, int, int], hour: int
) -> None:
    start = datetime(*day, tzinfo=zone).astimezone(UTC) + timedelta(hours=hour)
    naive = minutes_of(rule, zone, start, 36)

    assert list(islice(due_times(rule, zone, start), len(naive))) == naive


@given(
    rule=RULES,
    zone=st.sampled_from(ZONES),
    start=STARTS.map(lambda start: start.replace(tzinfo=UTC)),
    part=st.floats(0, 0.999),
)
def test_next_due_is_the_same_between_two_due_times(
    rule: str, zone: ZoneInfo, start: datetime, part: float
) -> None:
    first, second = islice(due_times(rule, zone, start), 2)
    assert start < first < second
    between = first + (second - first) * part
    assert next_due(rule, zone, between) == second


@given(rule=RULES, start=STARTS)
def test_due_times_equal_cronsim_without_clock_jumps(rule: str, start: datetime) -> None:
    theirs = list(islice(CronSim(rule, start), 20))
    ours = islice(due_times(rule, ZoneInfo("UTC"), start.replace(tzinfo=UTC)), 20)
    assert [moment.replace(tzinfo=None) for moment in ours] == theirs


@given(rule=st.tuples(numbers(0, 59), numbers(0, 23), DAYS, st.just("*"), WEEKDAYS).map(" ".join))
def test_fixed_times_equal_cronsim_across_hour_jumps(rule: str) -> None:
    start = datetime(2026, 3, 1, tzinfo=BERLIN)
    theirs = [moment.astimezone(UTC) for moment in islice(CronSim(rule, start), 300)]
    ours = list(islice(due_times(rule, BERLIN, start), len(set(theirs))))
    assert ours == sorted(set(theirs))  # cronsim repeats a moment at which two skipped times are due


@given(rule=RULES)
def test_due_times_are_at_least_the_smallest_gap_apart(rule: str) -> None:
    times = list(islice(CronSim(rule, datetime(2026, 1, 1)), 100))  # noqa: DTZ001 - no zone, no jumps
    assert min(later - earlier for earlier, later in pairwise(times)) >= smallest_gap(rule)


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "* * * *",
        "* * * * * *",
        "@daily",
        "60 * * * *",
        "* 24 * * *",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "*/0 * * * *",
        "0 0 * * 1#6",
        "0 0 * * 1#2/3",
        "5-1 * * * *",
        "٣ * * * *",
        "0 0 1 1 " + ",".join("1" * 60),
    ],
)
def test_invalid_rule_is_refused(rule: str) -> None:
    with pytest.raises(ScheduleInvalid):
        normal(rule)


def test_rule_is_normalized_and_an_impossible_rule_is_never_due() -> None:
    assert normal(" 0  9 * * mon-fri ") == "0 9 * * MON-FRI"
    # A fifth Monday that is the first of a month cannot be excluded by the fields alone.
    assert next_due("0 0 */31 2 1#5", BERLIN, datetime(2026, 1, 1, tzinfo=UTC)) is None


#: Days that occur seldom or never, and the days on which clocks are set forward.
RARE_DAYS = st.one_of(
    st.sampled_from(["29 2 *", "*/28 2 SUN#5", "*/31 2 1#5", "*/50 * SUN#5", "L 2 */6"]),
    st.sampled_from(["* 3 SUN#2", "8-14 3 */7", "* 3 7L", "25-31 3 */7", "* 4 5L", "* 9 SUN#1", "* 10 SUN#1"]),
)
#: Times that a clock skips, as fixed times and as times that follow elapsed time.
SKIPPED_TIMES = st.one_of(
    st.sampled_from(["*/30 2", "* 2", "0-59/7 2", "30 2", "*/15 0", "* */25", "15 0,2", "5 *"]),
    st.tuples(MINUTES, HOURS).map(" ".join),
)
FORWARD_ZONES = [
    *ZONES,
    *map(ZoneInfo, ("America/New_York", "Africa/Cairo", "America/Santiago", "Africa/Casablanca")),
]


def calls_during(work: Callable[[], object]) -> int:
    """Return the number of functions that the work calls, as a measure of its cost."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@given(
    times=SKIPPED_TIMES,
    days=st.one_of(RARE_DAYS, st.tuples(DAYS, st.just("*"), WEEKDAYS).map(" ".join)),
    zone=st.sampled_from(FORWARD_ZONES),
    start=STARTS,
)
@example(
    times="*/30 2",
    days="* 3 SUN#2",
    zone=ZoneInfo("America/New_York"),
    start=datetime.fromisoformat("2026-03-09"),
)
@example(times="*/7 *", days="*/50 * SUN#5", zone=BERLIN, start=datetime.fromisoformat("2026-01-01"))
def test_search_is_bounded_for_times_that_never_occur(
    times: str, days: str, zone: ZoneInfo, start: datetime
) -> None:
    rule, after = f"{times} {days}", start.replace(tzinfo=UTC)

    # Some calls for each day until the horizon, and some for each minute of a day.
    assert calls_during(lambda: next_due(rule, zone, after)) < 10 * HORIZON.days + 20 * 24 * 60


@pytest.mark.parametrize("rule", ["*/30 2 * 3 SUN#2", "* 2 8-14 3 */7"])
def test_times_that_the_clock_always_skips_are_never_due(rule: str) -> None:
    assert next_due(rule, ZoneInfo("America/New_York"), datetime(2026, 1, 1, tzinfo=UTC)) is None
    # A fixed time is due at the end of the change.
    assert local_due_times("30 2 * 3 SUN#2", "America/New_York", "2026-01-01 00:00", 2) == [
        "08 03:00 -0400",
        "14 03:00 -0400",
    ]


@given(times=st.tuples(MINUTES, HOURS).map(" ".join), days=RARE_DAYS, start=STARTS)
def test_seldom_due_times_equal_cronsim_without_clock_jumps(times: str, days: str, start: datetime) -> None:
    rule = f"{times} {days}"
    theirs = next(CronSim(rule, start), None)
    expected = None if theirs is None or theirs > start + HORIZON else theirs.replace(tzinfo=UTC)

    assert next_due(rule, ZoneInfo("UTC"), start.replace(tzinfo=UTC)) == expected
