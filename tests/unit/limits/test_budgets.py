"""Budgets in the database: windows, clocks, warning thresholds, and two processes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage
from tests.standins.clock import Clock

from torana.errors import BudgetSpent
from torana.limits.budgets import Admitted, Budgets, Estimate
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.limits.request_tokens import RequestTokens
from torana.limits.usage_reports import Subject, UsageReport, report
from torana.messages import GATEWAY_OWNER, Inbound, Turn, new_id
from torana.store.engine.database import Connection, Database
from torana.store.engine.sqlite import sqlite_engine
from torana.store.rows import turns as rows
from torana.store.rows import usage
from torana.store.rows.turns import Ending, NewTurn

#: Reserved for one call: 10 tokens of input (5 bytes of message and 5 fixed) and 10 of output.
ESTIMATE = Estimate(output=10, overhead=5)


@pytest.fixture
def clock() -> Clock:
    """A clock late on the last day of a short month."""
    return Clock(datetime(2026, 2, 28, 23, 59, 58, tzinfo=UTC))


class Gate:
    """Admits messages of ana under one set of limits, and ends their turns."""

    def __init__(self, database: Database, clock: Clock, *limits: str) -> None:
        self._database = database
        self._clock = clock
        self.limits = Limits(per_user=[parse_limit(text) for text in limits])
        self.budgets = Budgets(limits=self.limits, prices=Prices(), estimate=ESTIMATE, clock=clock)

    async def admit(self) -> tuple[Turn, Admitted]:
        return await self._database.run(partial(admit, budgets=self.budgets, at=self._clock()))

    async def refusal(self) -> BudgetSpent:
        with pytest.raises(BudgetSpent) as refused:
            await self.admit()
        return refused.value

    async def step(self, turn: Turn, *tokens: int) -> None:
        """Settle a step of the turn with these input and output tokens."""
        response = ModelResponse(parts=[], usage=RequestUsage(input_tokens=tokens[0], output_tokens=tokens[1]))
        await self._database.run(partial(self.budgets.settle, turn=turn, responses=[response]))

    async def cancel(self, turn: Turn) -> Turn:
        ending = Ending(at=self._clock(), state="cancelled")
        [ended], _ = await self._database.run(partial(rows.finish, turn=turn, ending=ending, hold=True))
        return ended

    async def report(self) -> UsageReport:
        work = partial(report, subject=Subject(user="ana"), limits=self.limits, days=3, at=self._clock())
        return await self._database.run(work)

    async def level(self) -> tuple[float, float]:
        """Return the used and the reserved amount of the first limit."""
        state = (await self.report()).limits[0]
        return state.used, state.reserved


def admit(connection: Connection, budgets: Budgets, at: datetime) -> tuple[Turn, Admitted]:
    inbound = Inbound(owner=GATEWAY_OWNER, principal="local", content="hello", user="ana")
    new = NewTurn(turn_id=new_id("turn"), session_id=new_id("ses"), channel=new_id("ch"), at=at)
    turn = rows.accept(connection, inbound, new, hold=False).turn
    return turn, budgets.admit(connection, turn)


@pytest.fixture
def gate(database: Database, clock: Clock) -> Callable[..., Gate]:
    return partial(Gate, database, clock)


@pytest.mark.parametrize(
    ("limit", "wait", "then"),
    [
        ("1 messages/day", 2, "2026-03-01T00:00:00"),
        ("1 messages/month", 2, "2026-03-01T00:00:00"),
        ("20 tokens/minute", 2, "2026-03-01T00:00:00"),
    ],
)
async def test_window_ends_at_the_announced_time(
    gate: Callable[..., Gate], clock: Clock, limit: str, wait: int, then: str
) -> None:
    day = gate(limit)
    await day.admit()

    refused = await day.refusal()

    assert refused.headers["Retry-After"] == str(wait)
    clock.set("2026-02-28T23:59:59.999999")
    assert (await day.refusal()).headers["Retry-After"] == "1"
    clock.set(then)
    await day.admit()


async def test_refusal_by_several_limits_names_the_longest_wait(
    gate: Callable[..., Gate], clock: Clock
) -> None:
    clock.set("2026-02-28T23:58:30")
    both = gate("1 messages/minute", "1 messages/day")
    await both.admit()

    refused = await both.refusal()

    assert refused.headers["Retry-After"] == "90"
    assert refused.extra["violatedPolicies"] == ["user-messages-minute", "user-messages-day"]


@pytest.mark.parametrize("limit", ["1 messages/day", "1 messages/month", "20 tokens/minute", "20 tokens/day"])
async def test_clock_set_back_across_a_boundary_frees_nothing(
    gate: Callable[..., Gate], clock: Clock, limit: str
) -> None:
    window = gate(limit)
    clock.set("2026-03-01T00:00:00")
    await window.admit()

    clock.set("2026-02-28T23:59:59")

    await window.refusal()
    clock.set("2026-03-01T00:00:01")
    await window.refusal()


async def test_reservation_is_charged_to_the_window_that_was_checked(
    gate: Callable[..., Gate], clock: Clock
) -> None:
    day = gate("20 tokens/day")
    turn, _ = await day.admit()
    clock.set("2026-03-01T00:00:01")
    later, _ = await day.admit()

    await day.step(turn, 3, 4)

    # The old day's call is charged to the old day; the new day has no room for its next call.
    assert await day.level() == (0, 20)
    assert [spent.input_tokens for _, spent in (await day.report()).days] == [0, 3, 0]
    assert (await day.cancel(turn)).usage.output_tokens == 4
    await day.cancel(later)
    assert await day.level() == (0, 0)


async def test_minute_rows_are_deleted_after_an_hour(
    gate: Callable[..., Gate], clock: Clock, database: Database
) -> None:
    minute = gate("40 tokens/minute", "1000 tokens/month")
    first, _ = await minute.admit()
    clock.set("2026-03-01T02:00:00")
    second, _ = await minute.admit()

    read = partial(usage.by_period, account="user:ana", first="2026-02-28T00:00", last="2026-03-02T00:00")
    assert [period for period, _ in await database.run(read)] == ["2026-03-01T02:00"]
    # The reservation of the deleted minute is released on its month only.
    await minute.cancel(first)
    assert await minute.level() == (0, 20)
    await minute.cancel(second)
    assert [state.reserved for state in (await minute.report()).limits] == [0, 0]


async def test_cancelled_turn_is_charged_only_for_settled_steps(
    gate: Callable[..., Gate],
) -> None:
    budget = gate("100 tokens/day")
    turn, _ = await budget.admit()
    assert await budget.level() == (0, 20)

    await budget.step(turn, 5, 2)
    assert await budget.level() == (7, 17)  # the tokens so far, and another response
    await budget.step(turn, 9, 1)
    assert await budget.level() == (17, 20)
    ended = await budget.cancel(turn)

    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (14, 3)
    assert await budget.level() == (17, 0)


async def test_tool_results_are_reserved(gate: Callable[..., Gate], database: Database) -> None:
    budget = gate("100 tokens/day")
    turn, _ = await budget.admit()
    await budget.step(turn, 5, 2)

    fits = await database.run(partial(budget.budgets.add_result, turn=turn, result=b"x" * 30))
    too_much = await database.run(partial(budget.budgets.add_result, turn=turn, result=b"x" * 300))

    assert fits.refusal is None
    assert too_much.refusal is not None
    assert "less than the 147 tokens reserved" in too_much.refusal.detail
    assert too_much.refusal.extra["violatedPolicies"] == ["user-tokens-day"]
    assert await budget.level() == (7, 0)


async def test_missing_usage_is_estimated(gate: Callable[..., Gate]) -> None:
    budget = gate("100 tokens/day")
    turn, _ = await budget.admit()

    await budget.step(turn, 0, 0)

    assert await budget.level() == (0, 30)


async def test_summaries_have_a_share_of_the_tokens_of_their_session(
    gate: Callable[..., Gate], database: Database
) -> None:
    here = gate()
    turn, _ = await here.admit()
    request = RequestTokens(likely=100, most=300)

    async def allowed(percent: int) -> bool:
        work = partial(here.budgets.allows_summary, turn=turn, request=request, percent=percent)
        return await database.run(work)

    # Without any usage of turns the share is unknown.
    assert [await allowed(percent) for percent in (0, 1, 50)] == [False, True, True]
    await here.step(turn, 250, 50)
    await here.cancel(turn)
    assert [await allowed(percent) for percent in (24, 25)] == [False, True]

    response = ModelResponse(parts=[], usage=RequestUsage(input_tokens=80, output_tokens=20))
    await database.run(partial(here.budgets.charge, turn=turn, responses=[response]))

    assert [await allowed(percent) for percent in (39, 40)] == [False, True]
    today = (await here.report()).today
    assert (today.summary_tokens, today.input_tokens, today.output_tokens) == (100, 330, 70)


async def test_limit_below_one_call_is_explained(gate: Callable[..., Gate]) -> None:
    refused = await gate("16 tokens/day").refusal()

    assert "less than the 17 tokens reserved for one model call" in refused.detail
    assert "TORANA_MAX_OUTPUT_TOKENS" in refused.detail


async def test_warnings_appear_when_a_threshold_is_crossed(gate: Callable[..., Gate]) -> None:
    budget = gate("10 messages/day")

    marks = [[told.percent for told in (await budget.admit())[1].warned] for _ in range(10)]

    assert marks == [[], [], [], [], [50], [], [], [80], [], []]


async def test_crossing_both_thresholds_warns_about_the_higher(gate: Callable[..., Gate]) -> None:
    (_, admitted) = await gate("1 messages/day").admit()

    assert [(told.policy, told.percent) for told in admitted.warned] == [("user-messages-day", 80)]


async def test_concurrent_turn_limit_is_released_when_turns_end(gate: Callable[..., Gate]) -> None:
    two = gate("2 turns")
    turn, _ = await two.admit()
    await two.admit()

    assert (await two.refusal()).extra["violatedPolicies"] == ["user-turns"]
    await two.cancel(turn)
    await two.admit()
    assert await two.level() == (2, 0)


@pytest.mark.parametrize("limit", ["50 messages/month", "1000 tokens/month"])
async def test_two_processes_share_one_budget(path: Path, limit: str, processes: ForkServerContext) -> None:
    """Both try 40 times at once, and 50 fit in total."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(2, mp_context=processes) as pool:
        admitted = await asyncio.gather(*(loop.run_in_executor(pool, spend, path, limit, 40) for _ in range(2)))

    assert sum(admitted) == 50
    assert all(admitted)


def spend(path: Path, limit: str, times: int) -> int:
    """Return how many messages a separate process admits."""
    limits = Limits(overall=[parse_limit(limit)])
    budgets = Budgets(limits=limits, prices=Prices(), estimate=ESTIMATE)
    engine = sqlite_engine(path)
    admitted = 0
    for _ in range(times):
        try:
            with engine.begin() as connection:
                admit(connection, budgets, datetime.now(UTC))
        except BudgetSpent:
            continue
        admitted += 1
    engine.dispose()
    return admitted


async def test_jumping_clock_leaves_no_reservation(gate: Callable[..., Gate], clock: Clock) -> None:
    budget = gate("40 tokens/minute", "1000 tokens/day", "1000 tokens/month")
    start = clock.now
    for minutes in (0, 61, -5, 300, -400, 2, 44_000, -44_000):
        clock.now = start + timedelta(minutes=minutes)
        turn, _ = await budget.admit()
        clock.now = start - timedelta(minutes=minutes)
        await budget.step(turn, 1, 1)
        await budget.cancel(turn)

    clock.now = start
    assert [state.reserved for state in (await budget.report()).limits] == [0, 0, 0]
