"""Rate limits of messages per minute, per user and overall."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from unittest import mock

import pytest

from torana.errors import MemoryFull, QueueFull, RateLimited
from torana.limits import rate_windows
from torana.limits.rate_limit_status import LimitStatus, headers
from torana.limits.rate_windows import LocalWindows
from torana.limits.rates import MessageRates


class Now:
    """A monotonic clock that is set by hand."""

    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


async def take(rates: MessageRates, user: str | None) -> Sequence[LimitStatus]:
    return (await rates.take(user)).statuses


async def refusal(rates: MessageRates, user: str | None) -> RateLimited:
    with pytest.raises(RateLimited) as refused:
        await rates.take(user)
    return refused.value


async def test_user_limit_applies_per_minute(now: Now) -> None:
    rates = MessageRates(per_user=2, overall=0, windows=LocalWindows(now))

    assert [(s.policy.name, s.remaining, s.reset) for s in await take(rates, "ana")] == [("user", 1, 60)]
    now.seconds += 10
    assert [(s.remaining, s.reset) for s in await take(rates, "ana")] == [(0, 50)]
    refused = await refusal(rates, "ana")
    assert refused.headers["Retry-After"] == "50"
    assert refused.extra == {"retryAfterMs": 50_000, "violatedPolicies": ["user"]}
    assert "2 a minute (TORANA_RATE_PER_USER). Try again in 50 s." in refused.detail

    now.seconds += 50.5
    await rates.take("ana")
    await refusal(rates, "ana")


async def test_users_have_separate_windows_and_a_common_one(now: Now) -> None:
    rates = MessageRates(per_user=2, overall=3, windows=LocalWindows(now))
    await rates.take("ana")
    await rates.take("bob")
    await rates.take(None)

    refused = await refusal(rates, "carol")

    assert refused.extra["violatedPolicies"] == ["global"]
    assert "TORANA_RATE_GLOBAL" in refused.detail


async def test_only_the_global_limit_applies_without_a_user(now: Now) -> None:
    rates = MessageRates(per_user=1, overall=2, windows=LocalWindows(now))

    assert [[s.policy.name for s in await take(rates, None)] for _ in range(2)] == [["global"], ["global"]]
    await refusal(rates, None)


async def test_refused_message_consumes_nothing(now: Now) -> None:
    rates = MessageRates(per_user=1, overall=3, windows=LocalWindows(now))
    await rates.take("ana")
    for _ in range(10):
        await refusal(rates, "ana")

    assert (await take(rates, "bob"))[-1].remaining == 1
    await rates.take("carol")
    for _ in range(10):
        await refusal(rates, "dave")
    now.seconds += 61
    assert [s.remaining for s in await take(rates, "dave")] == [0, 2]


async def test_refusal_names_all_policies_and_the_longest_wait(now: Now) -> None:
    rates = MessageRates(per_user=1, overall=2, windows=LocalWindows(now))
    await rates.take("bob")
    now.seconds += 20
    await rates.take("ana")
    now.seconds += 10

    refused = await refusal(rates, "ana")

    assert refused.extra["violatedPolicies"] == ["user", "global"]
    assert refused.headers["Retry-After"] == "50"
    assert "1 a minute (TORANA_RATE_PER_USER) and 2 a minute (TORANA_RATE_GLOBAL)" in refused.detail


async def test_window_slides(now: Now) -> None:
    rates = MessageRates(per_user=0, overall=2, windows=LocalWindows(now))
    await rates.take(None)
    now.seconds += 40
    await rates.take(None)
    now.seconds += 21

    assert (await take(rates, None))[0].remaining == 0
    assert (await refusal(rates, None)).headers["Retry-After"] == "39"


async def test_message_after_the_announced_wait_is_accepted(now: Now) -> None:
    rates = MessageRates(per_user=1, overall=0, windows=LocalWindows(now))
    await rates.take("ana")
    now.seconds += 20

    now.seconds += int((await refusal(rates, "ana")).headers["Retry-After"])

    assert (await take(rates, "ana"))[0].remaining == 0


async def test_message_that_is_refused_later_gives_back_its_own_place(now: Now) -> None:
    rates = MessageRates(per_user=2, overall=0, windows=LocalWindows(now))
    await rates.take("ana")
    now.seconds += 40
    with pytest.raises(QueueFull):
        async with rates.count("ana"):
            raise QueueFull

    now.seconds += 20

    assert (await take(rates, "ana"))[0].remaining == 1


async def test_refusal_that_takes_as_long_as_the_work_counts(now: Now) -> None:
    rates = MessageRates(per_user=2, overall=0, windows=LocalWindows(now))
    with pytest.raises(MemoryFull):
        async with rates.count("ana"):
            raise MemoryFull

    assert (await take(rates, "ana"))[0].remaining == 0


async def test_retry_after_is_at_least_one_second(now: Now) -> None:
    rates = MessageRates(per_user=0, overall=1, windows=LocalWindows(now))
    await rates.take(None)
    now.seconds += 59.9

    assert (await refusal(rates, None)).headers["Retry-After"] == "1"


async def test_messages_are_unlimited_when_both_limits_are_off(now: Now) -> None:
    rates = MessageRates(per_user=0, overall=0, windows=LocalWindows(now))

    assert [await take(rates, "ana") for _ in range(500)] == [[]] * 500
    assert headers([]) == {}


async def test_headers_report_the_policy_closest_to_its_limit(now: Now) -> None:
    rates = MessageRates(per_user=2, overall=4, windows=LocalWindows(now))
    await rates.take("bob")
    await rates.take("bob")

    assert headers(await take(rates, "ana")) == {
        "RateLimit-Policy": '"user";q=2;w=60, "global";q=4;w=60',
        "RateLimit": '"global";r=1;t=60',
    }
    assert headers(await take(rates, "ana"))["RateLimit"] == '"user";r=0;t=60'
    assert (await refusal(rates, "carol")).headers["RateLimit"] == '"global";r=0;t=60'


async def test_windows_of_inactive_users_are_removed(now: Now, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_windows, "_WINDOWS", 100)
    windows = LocalWindows(now)
    rates = MessageRates(per_user=1, overall=0, windows=windows)
    sizes: list[int] = []
    for number in range(1_000):
        await rates.take(f"user {number}")
        now.seconds += 60
        sizes.append(len(windows._windows))  # pyright: ignore[reportPrivateUsage]

    assert max(sizes) == 100
    assert sizes[-1] <= 100


async def test_active_users_are_not_swept_at_each_message(now: Now, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_windows, "_WINDOWS", 100)
    windows = LocalWindows(now)
    rates = MessageRates(per_user=1, overall=0, windows=windows)
    for number in range(1_000):
        await rates.take(f"user {number}")

    assert windows._sweep_at == 1_600  # pyright: ignore[reportPrivateUsage]
    await refusal(rates, "user 0")


@pytest.mark.parametrize("year", [1970, 2029])
async def test_wall_clock_changes_do_not_affect_windows(year: int) -> None:
    rates = MessageRates(per_user=1, overall=0)
    await rates.take("ana")
    with mock.patch.object(time, "time", datetime(year, 1, 1, tzinfo=UTC).timestamp):
        assert int((await refusal(rates, "ana")).headers["Retry-After"]) <= 60
