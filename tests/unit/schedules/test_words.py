"""Times and rules in plain English."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.errors import ScheduleInvalid
from torana.schedules.rules import next_due
from torana.schedules.words import describe_rule, format_moment, read_instant, read_rule

BERLIN = ZoneInfo("Europe/Berlin")
#: A Wednesday, 10 o'clock.
NOW = datetime(2026, 3, 4, 10, 0, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("text", "wall"),
    [
        ("tomorrow at 9", "2026-03-05 09:00"),
        ("Tomorrow, 9:30.", "2026-03-05 09:30"),
        ("at 9", "2026-03-05 09:00"),  # 9 o'clock today has passed
        ("at 17", "2026-03-04 17:00"),
        ("9pm", "2026-03-04 21:00"),
        ("12 am", "2026-03-05 00:00"),
        ("at noon", "2026-03-04 12:00"),
        ("at midnight", "2026-03-05 00:00"),
        ("on Friday at 5 p.m.", "2026-03-06 17:00"),
        ("Friday", "2026-03-06 09:00"),
        ("next Monday at noon", "2026-03-09 12:00"),
        ("the day after tomorrow at 17:15", "2026-03-06 17:15"),
        ("24 December at 8", "2026-12-24 08:00"),
        ("in 20 minutes", "2026-03-04 10:20"),
        ("in half an hour", "2026-03-04 10:30"),
        ("in an hour", "2026-03-04 11:00"),
        ("in 25 days", "2026-03-29 10:00"),  # the clock jumps that night, and the local time stays
        ("in 2 weeks at 9", "2026-03-18 09:00"),
        ("tonight", "2026-03-04 20:00"),
        ("tonight at 8", "2026-03-04 20:00"),
        ("tomorrow night at 8", "2026-03-05 20:00"),
        ("in twenty minutes", "2026-03-04 10:20"),
        ("in 2h", "2026-03-04 12:00"),
        ("in 2 hrs", "2026-03-04 12:00"),
        ("in 2.5 hours", "2026-03-04 12:30"),
        ("15 minutes from now", "2026-03-04 10:15"),
        ("tomorrow at 9h", "2026-03-05 09:00"),
        ("tomorrow evening at 8", "2026-03-05 20:00"),
        ("at 5 in the afternoon", "2026-03-04 17:00"),
        ("Friday at 9 in the morning", "2026-03-06 09:00"),
        ("this evening", "2026-03-04 19:00"),
        ("tomorrow evening at 5", "2026-03-05 17:00"),
        ("tomorrow noon", "2026-03-05 12:00"),
        ("tonight at 9 pm", "2026-03-04 21:00"),
        ("tonight at 11", "2026-03-04 23:00"),
        ("tomorrow at 12 in the afternoon", "2026-03-05 12:00"),
        ("on the 5th of May at 8", "2026-05-05 08:00"),
        ("May 5th, 2026 at 8", "2026-05-05 08:00"),
        ("24.12.2026 at 8", "2026-12-24 08:00"),
        ("in two weeks at 9", "2026-03-18 09:00"),
        ("in 3 days in the evening", "2026-03-07 19:00"),
        ("2026-12-24", "2026-12-24 09:00"),
        ("2026-12-24T18:30", "2026-12-24 18:30"),
        ("2026-12-24 18:30:00Z", "2026-12-24 19:30"),
        ("2026-12-24T18:30+05:30", "2026-12-24 14:00"),
        ("2026-03-29 02:30", "2026-03-29 03:00"),  # that local time is skipped
    ],
)
def test_times_are_parsed(text: str, wall: str) -> None:
    read = read_instant(text, now=NOW, zone=BERLIN)
    assert f"{read.astimezone(BERLIN):%Y-%m-%d %H:%M}" == wall


def test_ambiguous_time_is_the_first_occurrence() -> None:
    assert read_instant("2026-10-25 02:30", now=NOW, zone=BERLIN) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "yesterday at 9",
            "Tuesday, 3 March 2026 at 09:00 (Europe/Berlin) is in the past. The time is now Wednesday",
        ),
        ("today at 9", "is in the past"),
        ("2026-03-04T10:00", "is in the past"),
        ("in 0 minutes", "is in the past"),
        ("2040-01-01 09:00", "more than 10 years ahead"),
        ("in 99999 weeks", "more than 10 years ahead"),
        ("every day at 9", "are a rule, not a time"),
        ("tomorrow at 9 at 10", "is not a time"),
        ("at 25", "is not a time"),
        ("at 13 pm", "is not a time"),
        ("9", "is not a time"),
        ("01/02/2027 at 9", "is not a time"),
        ("soon", "is not a time"),
        ("now", "is not a time"),
        ("in 1 hour and 30 minutes", "is not a time"),
        ("tomorrow at 9 utc", "is not a time"),
        ("tomorrow at 9am est", "is not a time"),
        ("tonight at midnight", "is not a time"),
        ("tonight at 1", "is not a time"),
        ("this evening at 12", "is not a time"),
        ("this evening at midnight", "is not a time"),
        ("this evening at 9 am", "is not a time"),
        ("tomorrow evening at 2", "is not a time"),
        ("tomorrow morning at 12", "is not a time"),
        ("tomorrow morning at 8 pm", "is not a time"),
        ("tomorrow noon at 1", "is not a time"),
        ("tomorrow evening 5", "is not a time"),
        ("tomorrow 5", "is not a time"),
        ("tomorrow 1730", "is not a time"),
        ("tomorrow 17.30", "is not a time"),
        ("tomorrow at eight", "is not a time"),
        ("tomorrow midnight", "is not a time"),
        ("24 December evening 8", "is not a time"),
        ("tomorrow night at 12", "is not a time"),
        ("", "1 to 100 characters"),
        ("x" * 5000, "1 to 100 characters"),
    ],
)
def test_invalid_or_past_time_is_refused_with_a_reason(text: str, told: str) -> None:
    with pytest.raises(ScheduleInvalid) as refused:
        read_instant(text, now=NOW, zone=BERLIN)
    assert told in refused.value.detail


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("every day at 9", "0 9 * * *"),
        ("daily at 9:30", "30 9 * * *"),
        ("at 9 every day", "0 9 * * *"),
        ("every weekday at 17:00", "0 17 * * MON-FRI"),
        ("on weekdays at 5 pm", "0 17 * * MON-FRI"),
        ("every weekend at 10", "0 10 * * SAT,SUN"),
        ("Every Monday and Thursday at 8", "0 8 * * MON,THU"),
        ("Mondays, Tuesdays, and Fridays at noon", "0 12 * * MON,TUE,FRI"),
        ("every morning", "0 9 * * *"),
        ("every evening at 8", "0 20 * * *"),
        ("hourly", "0 */1 * * *"),
        ("every 2 hours", "0 */2 * * *"),
        ("every 24 hours", "0 0 * * *"),
        ("every 15 minutes", "*/15 * * * *"),
        ("every 60 minutes", "0 * * * *"),
        ("every month on the 1st at 9", "0 9 1 * *"),
        ("the 15th of each month at noon", "0 12 15 * *"),
        ("monthly on the last day at 18:00", "0 18 L * *"),
        ("every year on 24 December at 9", "0 9 24 DEC *"),
        ("yearly on May 1st", "0 9 1 MAY *"),
        ("30 9 * * mon-fri", "30 9 * * MON-FRI"),
    ],
)
def test_rules_are_parsed(text: str, rule: str) -> None:
    assert read_rule(text) == rule


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("0 9 * * *", "every day at 9:00"),
        ("0 17 * * MON-FRI", "every weekday at 17:00"),
        ("0 10 * * SAT,SUN", "every weekend at 10:00"),
        ("5 8 * * MON,THU", "every Monday and Thursday at 8:05"),
        ("0 */1 * * *", "every hour"),
        ("0 * * * *", "every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("*/15 * * * *", "every 15 minutes"),
        ("0 9 1 * *", "every month on the 1st at 9:00"),
        ("0 12 22 * *", "every month on the 22nd at 12:00"),
        ("0 18 L * *", "every month on the last day at 18:00"),
        ("0 9 24 DEC *", "every year on 24 December at 9:00"),
    ],
)
def test_rules_are_described_in_words_that_are_parsed_again(rule: str, said: str) -> None:
    assert describe_rule(rule) == said
    assert next_due(read_rule(said), BERLIN, NOW) == next_due(rule, BERLIN, NOW)


@pytest.mark.parametrize("rule", ["0,30 9 * * *", "0 9 1 * MON", "0 9 * * 1-3", "0 9 1-7 * *", "30 */2 * * *"])
def test_other_rules_are_described_by_their_expression(rule: str) -> None:
    assert describe_rule(rule) == f"`{rule}`"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("every 7 minutes", "7 does not divide 60 minutes"),
        ("every 5 hours", "5 does not divide 24 hours"),
        ("every 0 minutes", "0 does not divide"),
        ("on Monday at 8", "is not a rule"),
        ("every other day", "is not a rule"),
        ("every evening at 12", "is not a rule"),
        ("every night at 1", "is not a rule"),
        ("every night at 12", "is not a rule"),
        ("every evening 5", "is not a rule"),
        ("every year on 31 February", "never due"),
        ("every month on the 32nd at 9", "never due"),
        ("every year on 1 Foobar", "is not a rule"),
        ("tomorrow at 9", "is not a rule"),
        ("0 9 31 2 *", "never due"),
    ],
)
def test_invalid_rule_is_refused_with_a_reason(text: str, told: str) -> None:
    with pytest.raises(ScheduleInvalid) as refused:
        read_rule(text)
    assert told in refused.value.detail


@given(st.text(max_size=60) | st.text(alphabet="0123456789:- .atpmevryinhouds*,/", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(ScheduleInvalid):
        assert read_instant(text, now=NOW, zone=BERLIN) > NOW
    with suppress(ScheduleInvalid):
        assert read_rule(text).count(" ") == 4


def test_moment_is_formatted_with_weekday_and_zone() -> None:
    assert (
        format_moment(datetime(2026, 3, 2, 8, 5, tzinfo=UTC), BERLIN)
        == "Monday, 2 March 2026 at 09:05 (Europe/Berlin)"
    )
