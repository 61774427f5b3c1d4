from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from torana.messages import Turn
from torana.tools.base import ToolContext, ToolError
from torana.tools.builtin.dates import current_time, days_between, shift_date

# A Friday; in Honolulu it is still Thursday.
NOW = datetime(2026, 11, 20, 5, 5, tzinfo=UTC)


def context(now: datetime = NOW, timezone: str = "Europe/Rome") -> RunContext[ToolContext]:
    turn = Turn(
        id="turn_1",
        owner="gateway",
        session_id="ses_1",
        channel="c",
        seq=1,
        principal="local",
        user=None,
        content="",
        state="running",
        attempt=1,
        created_at=now,
    )
    deps = ToolContext(turn=turn, may_recall=True, timezone=ZoneInfo(timezone), clock=lambda: now)
    return RunContext(deps=deps, model=TestModel(), usage=RunUsage())


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        ("", "It is 06:05 on Friday, 20 November 2026 (Europe/Rome, UTC+01:00)."),
        ("Tokyo", "It is 14:05 on Friday, 20 November 2026 in Tokyo (Asia/Tokyo, UTC+09:00)."),
        ("honolulu", "It is 19:05 on Thursday, 19 November 2026 in honolulu (Pacific/Honolulu, UTC-10:00)."),
        ("New York", "It is 00:05 on Friday, 20 November 2026 in New York (America/New_York, UTC-05:00)."),
        ("Asia/Kolkata", "It is 10:35 on Friday, 20 November 2026 in Asia/Kolkata (Asia/Kolkata, UTC+05:30)."),
        ("Germany", "It is 06:05 on Friday, 20 November 2026 in Germany (Europe/Berlin, UTC+01:00)."),
        ("LA", "It is 21:05 on Thursday, 19 November 2026 in LA (America/Los_Angeles, UTC-08:00)."),
        ("the UK", "It is 05:05 on Friday, 20 November 2026 in the UK (Europe/London, UTC+00:00)."),
        ("UTC+2", "It is 07:05 on Friday, 20 November 2026 in UTC+2 (UTC+02:00)."),
        ("utc-05:30", "It is 23:35 on Thursday, 19 November 2026 in utc-05:30 (UTC-05:30)."),
        ("GMT", "It is 05:05 on Friday, 20 November 2026 in GMT (UTC+00:00)."),
    ],
)  # fmt: skip
def test_current_time_in_a_place(place: str, answer: str) -> None:
    assert current_time(context(), place) == answer


def test_current_time_follows_daylight_saving() -> None:
    summer = context(now=datetime(2026, 7, 1, 12, tzinfo=UTC))
    assert "14:00" in current_time(summer, "Rome")
    assert "UTC+02:00" in current_time(summer, "Rome")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("Atlantis", "The place “Atlantis” is unknown"),
        ("USA", "name a city, such as New York"),
        ("australia", "australia has more than one time zone"),
        ("../etc/passwd", "is unknown; name a large city"),
        ("UTC+15", "more than 14 hours"),
        ("x" * 61, "1 to 60 characters"),
        ("...", "1 to 60 characters"),
        ("north", "is unknown; name a large city"),
    ],
)
def test_unknown_or_ambiguous_place_is_refused_with_a_reason(place: str, why: str) -> None:
    with pytest.raises(ToolError) as refused:
        current_time(context(), place)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("end", "days"),
    [
        ("today", 0),
        ("tomorrow", 1),
        ("the day after tomorrow", 2),
        ("24 December", 34),
        ("December 24th", 34),
        ("24th of December", 34),
        ("20 November", 0),  # today, not next year
        ("19 November", 364),
        ("29 February", 466),  # the next one is in 2028
        ("Christmas", 35),
        ("New Year’s Eve", 41),
        ("friday", 7),
        ("on Monday", 3),
        ("in 3 weeks", 21),
        ("2026-12-24", 34),
        ("20261224", 34),
        ("2026-W52-4", 34),
        ("24/12/2026", 34),
        ("12/24/2026", 34),
        ("24.12.2026", 34),
        ("12.12.2026", 22),
        ("24 December 2026 at 5pm", 34),
    ],
)
def test_days_until_a_date_are_counted(end: str, days: int) -> None:
    assert days_between(context(), "today", end).split()[0] == str(days)


@pytest.mark.parametrize(
    ("start", "end", "answer"),
    [
        ("today", "24 December", "34 days from Friday, 20 November 2026 to Thursday, 24 December 2026."),
        ("2026-03-01", "2026-01-01", "59 days from Sunday, 1 March 2026 back to Thursday, 1 January 2026."),
        ("1 November", "1 March", "120 days from Sunday, 1 November 2026 to Monday, 1 March 2027."),
        ("10 November", "today", "10 days from Tuesday, 10 November 2026 to Friday, 20 November 2026."),
        ("Christmas", "1 December", "341 days from Thursday, 25 December 2025 to Tuesday, 1 December 2026."),
        ("thursday", "monday", "4 days from Thursday, 19 November 2026 to Monday, 23 November 2026."),
        ("2027-05-01", "1 March", "305 days from Saturday, 1 May 2027 to Wednesday, 1 March 2028."),
        ("1 March", "2024-03-02", "1 day from Friday, 1 March 2024 to Saturday, 2 March 2024."),
        ("today", "yesterday", "1 day from Friday, 20 November 2026 back to Thursday, 19 November 2026."),
        ("yesterday", "now", "1 day from Thursday, 19 November 2026 to Friday, 20 November 2026."),
        ("0001-01-01", "9999-12-31", "3,652,058 days from Monday, 1 January 1 to Friday, 31 December 9999."),
    ],
)
def test_days_between_two_dates_are_counted(start: str, end: str, answer: str) -> None:
    assert days_between(context(), start, end) == answer


def test_today_follows_the_time_zone() -> None:
    assert "19 November" in days_between(context(timezone="Pacific/Honolulu"), "today", "2026-12-24")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "“” is not a date"),
        ("9", "“9” is not a date"),
        ("the 5th", "is not a date"),
        ("2027", "is not a date"),
        ("31 April", "is not a date"),
        ("2026-13-01", "is not a date"),
        ("31/04/2026", "is not a date"),
        ("soon", "2026-11-20"),
        ("01/02/2027", "write 2027-01-02 or 2027-02-01"),
        ("99999999 years ago", "is not a date"),
        ("x" * 61, "at most 60 characters"),
    ],
)
def test_invalid_date_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(ToolError) as refused:
        days_between(context(), "today", text)
    assert why in str(refused.value)


@pytest.mark.parametrize(("start", "end"), [("monday", "0001-01-01"), ("9999-12-31", "1 March")])
def test_date_outside_the_calendar_is_refused(start: str, end: str) -> None:
    with pytest.raises(ToolError, match="is not a date"):
        days_between(context(), start, end)


@pytest.mark.parametrize(
    ("start", "steps", "answer"),
    [
        ("today", {"weeks": 3}, "3 weeks after Friday, 20 November 2026 is Friday, 11 December 2026."),
        ("today", {"days": -1}, "1 day before Friday, 20 November 2026 is Thursday, 19 November 2026."),
        ("2026-01-31", {"months": 1}, "1 month after Saturday, 31 January 2026 is Saturday, 28 February 2026."),
        ("2024-02-29", {"years": 1}, "1 year after Thursday, 29 February 2024 is Friday, 28 February 2025."),
        ("2026-01-01", {"months": 1, "days": -2}, "1 month and -2 days from Thursday, 1 January 2026 is Friday, 30 January 2026."),  # noqa: E501
        ("24 december", {}, "It is Thursday, 24 December 2026."),
        ("24 december", {"past": True}, "It is Wednesday, 24 December 2025."),
        ("christmas", {"past": True}, "It is Thursday, 25 December 2025."),
        ("monday", {"past": True}, "It is Monday, 16 November 2026."),
        ("20 november", {"past": True}, "It is Friday, 20 November 2026."),
        ("24 may", {"weeks": -1, "past": True}, "1 week before Sunday, 24 May 2026 is Sunday, 17 May 2026."),
    ],
)  # fmt: skip
def test_dates_are_shifted(start: str, steps: dict[str, Any], answer: str) -> None:
    assert shift_date(context(), start, **steps) == answer


@pytest.mark.parametrize(
    "steps", [{"years": 9000}, {"days": -4_000_000}, {"weeks": 10**30}, {"months": -(10**9)}]
)
def test_shift_outside_the_calendar_is_refused(steps: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="give a smaller number"):
        shift_date(context(), "today", **steps)


@given(start=st.dates(date(1000, 1, 1), date(3000, 1, 1)), days=st.integers(0, 100_000))
def test_shifting_and_counting_agree(start: date, days: int) -> None:
    end = start + timedelta(days=days)
    assert days_between(context(), start.isoformat(), end.isoformat()).split()[0] == f"{days:,}"
    assert f"{end:%A}" in shift_date(context(), start.isoformat(), days=days)


@given(st.text(max_size=70) | st.text("0123456789 /.-thofinagweksdyjmuprl", max_size=25))
def test_any_text_is_parsed_as_a_date_or_refused(text: str) -> None:
    with suppress(ToolError):
        assert days_between(context(), text, "today")


def test_date_parser_is_not_imported_at_start(imported_at_start: frozenset[str]) -> None:
    assert "torana.tools.builtin.dates" in imported_at_start
    assert "dateparser" not in imported_at_start


@pytest.mark.parametrize(
    ("start", "past", "answer"),
    [
        ("easter", False, "It is Sunday, 28 March 2027."),
        ("Easter Sunday", True, "It is Sunday, 5 April 2026."),
        ("halloween", False, "It is Sunday, 31 October 2027."),
        ("xmas", False, "It is Friday, 25 December 2026."),
    ],
)
def test_feasts_are_dates(start: str, past: bool, answer: str) -> None:
    assert shift_date(context(), start, past=past) == answer


def test_easter_sunday_itself_is_today() -> None:
    today = datetime(2026, 4, 5, 12, tzinfo=UTC)

    assert shift_date(context(today), "easter") == "It is Sunday, 5 April 2026."
