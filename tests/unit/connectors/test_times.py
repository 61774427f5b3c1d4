"""Parsing of timestamps from platforms."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from torana.connectors.transport.parsing import time_in_mail, time_of

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "per_second", "time"),
    [
        (1_772_443_800, 1, AT),
        ("1772443800.000100", 1, AT.replace(microsecond=100)),
        ("1772443800000", 1_000, AT),
        (None, 1, None),
        ("", 1, None),
        ("yesterday", 1, None),
        ("nan", 1, None),
        ("inf", 1, None),
        (10**30, 1, None),
        ({}, 1_000, None),
    ],
)
def test_number_becomes_time_or_none(number: object, per_second: int, time: datetime | None) -> None:
    assert time_of(number, per_second=per_second) == time


@pytest.mark.parametrize(
    ("date", "time"),
    [
        ("Mon, 02 Mar 2026 10:30:00 +0100", AT),
        ("Mon, 02 Mar 2026 09:30:00 GMT", AT),
        ("Mon, 02 Mar 2026 09:30:00 -0000", AT),
        ("Fri, 31 Dec 9999 23:30:00 -0100", None),
        ("Mon, 02 Mar 2026 09:30:00 +9999", None),
        ("Mon, 45 Mar 2026 09:30:00 +0000", None),
        ("", None),
    ],
)
def test_email_date_becomes_time_or_none(date: str, time: datetime | None) -> None:
    assert time_in_mail(date) == time
