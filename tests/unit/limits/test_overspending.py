"""No limit is exceeded by more than one call, whatever runs concurrently."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage
from tests.standins.clock import Clock

from torana.errors import BudgetSpent
from torana.limits.budgets import Budgets, Estimate
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.limits.request_tokens import RequestTokens
from torana.messages import GATEWAY_OWNER, Inbound, Turn, Usage, new_id
from torana.store.engine.database import Connection
from torana.store.engine.sqlite import sqlite_engine
from torana.store.rows import turns as rows
from torana.store.rows import usage
from torana.store.rows.turns import Ending, NewTurn

OUTPUT = 1_000

_users = count()


@pytest.fixture
def connection(path: Path) -> Generator[Connection]:
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@dataclass
class Conversation:
    """A running turn with a model whose tokenizer makes ``density`` tokens of each byte."""

    turn: Turn
    density: float
    #: The bytes of its next request, and of the tool definitions in it.
    size: int
    fixed: int
    #: The input and output tokens of its last call.
    said: int | None = None
    new: int = 0


class World:
    """Turns of one user under a daily token limit; tool definitions may grow at any time."""

    def __init__(self, connection: Connection, *, limit: int, fixed: int) -> None:
        self.connection = connection
        self.user = f"user{next(_users)}"
        self.fixed = fixed
        self.running: list[Conversation] = []
        self.calls: list[int] = []
        self.clock = Clock(datetime(2026, 3, 2, 9, tzinfo=UTC))
        self.budgets = Budgets(
            limits=Limits(per_user=[parse_limit(f"{limit} tokens/day")]),
            prices=Prices(),
            estimate=Estimate(output=OUTPUT),
            fixed_tokens=lambda: RequestTokens.of_bytes(self.fixed),
            clock=self.clock,
        )

    def accept(self, density: float, content: int) -> None:
        inbound = Inbound(
            owner=GATEWAY_OWNER, principal="local", content="x" * content, user=self.user, channel=new_id("ch")
        )
        new = NewTurn(turn_id=new_id("turn"), session_id=new_id("ses"), channel=new_id("ch"), at=self.clock())
        try:
            with self.connection.begin_nested():
                turn = rows.accept(self.connection, inbound, new, hold=False).turn
                self.budgets.admit(self.connection, turn)
        except BudgetSpent:
            return
        size = self.fixed + content
        self.running.append(Conversation(turn=turn, density=density, size=size, fixed=self.fixed))

    def ask(self, number: int, output: int, result: int) -> None:
        """Make the next call of a turn, and run a tool where the response calls one."""
        one = self.send(number)
        if one is None:
            return
        taken = int(one.size * one.density)
        self.calls.append(taken + output)
        response = ModelResponse(parts=[], usage=RequestUsage(input_tokens=taken, output_tokens=output))
        self.budgets.settle(self.connection, one.turn, [response])
        if not result:
            self.end(number)
            return
        self.budgets.add_result(self.connection, one.turn, b"x" * result)
        one.said, one.new = taken + output, result
        one.size += result

    def crash(self, count: int, output: int) -> None:
        """Kill the process while this number of turns waits for a response."""
        for one in self.running[:count]:
            if self.send(self.running.index(one)) is one:
                self.calls.append(int(one.size * one.density) + output)
        self.budgets.charge_interrupted(self.connection)

    def wait(self, number: int) -> None:
        """Let a turn wait for an approval."""
        if self.running:
            self.budgets.release(self.connection, self.running[number % len(self.running)].turn)

    def send(self, number: int) -> Conversation | None:
        """Send the next request of a turn; return None if it is refused."""
        if not self.running:
            return None
        one = self.running[number % len(self.running)]
        grown, one.fixed = self.fixed - one.fixed, self.fixed  # tools added since
        one.size, one.new = one.size + grown, one.new + grown
        if one.said is None:
            request = RequestTokens.of_bytes(one.size)
        else:
            request = RequestTokens(likely=one.said, most=one.said) + RequestTokens.of_bytes(one.new)
        refused = self.budgets.hold(self.connection, one.turn, request).refusal is not None
        if refused or usage.read_reservation(self.connection, one.turn.id).on is None:
            self.end(number)
            return None
        return one

    def end(self, number: int) -> None:
        if self.running:
            one = self.running.pop(number % len(self.running))
            ending = Ending(at=self.clock(), state="cancelled", spent=Usage())
            rows.finish(self.connection, one.turn, ending, hold=True)

    @property
    def charged(self) -> int:
        day = self.clock().strftime("%Y-%m-%d")
        return usage.total(self.connection, usage.of_user(self.user), first=day, last=day).tokens


_accepts = st.tuples(
    st.just("accept"), st.sampled_from([0.01, 0.25, 0.5, 1.0]), st.sampled_from([1, 500, 10_000])
)
_asks = st.tuples(
    st.just("ask"),
    st.integers(0, 50),
    st.sampled_from([0, 10, OUTPUT]),
    st.sampled_from([0, 0, 100, 20_000]),
)
_others = st.tuples(st.sampled_from(["end", "connect", "wait"]), st.integers(0, 20_000))


_crashes = st.tuples(st.just("crash"), st.integers(0, 3), st.sampled_from([0, OUTPUT]))
_worlds = st.tuples(st.sampled_from([2_000, 20_000, 100_000]), st.sampled_from([100, 10_000, 200_000]))
_settings = settings(
    max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def run_steps(world: World, steps: list[tuple[Any, ...]]) -> None:
    for step in steps:
        match step:
            case ("accept", density, content):
                world.accept(density, content)
            case ("ask", number, output, result):
                world.ask(number, output, result)
            case ("end", number):
                world.end(number)
            case ("wait", number):
                world.wait(number)
            case ("connect", size):
                world.fixed += size
            case ("crash", count, output):
                world.crash(count, output)
            case _:
                raise AssertionError(step)


@_settings
@given(
    sizes=_worlds,
    first=st.lists(_accepts, max_size=40),
    then=st.lists(st.one_of(_accepts, _asks, _asks, _others), max_size=60),
)
def test_no_limit_is_exceeded_by_more_than_one_call(
    connection: Connection, sizes: tuple[int, int], first: list[tuple[Any, ...]], then: list[tuple[Any, ...]]
) -> None:
    limit, fixed = sizes
    world = World(connection, limit=limit, fixed=fixed)

    run_steps(world, first + then)

    assert world.charged == sum(world.calls)
    assert world.charged <= limit + max(world.calls, default=0)


@_settings
@given(
    sizes=_worlds,
    first=st.lists(_accepts, max_size=10),
    then=st.lists(st.one_of(_accepts, _asks, _others, _crashes, _crashes), max_size=60),
)
@example(sizes=(20_000, 100), first=[("accept", 1.0, 500)], then=[("crash", 1, OUTPUT)] * 40)
def test_no_limit_is_exceeded_by_crashes_during_calls(
    connection: Connection, sizes: tuple[int, int], first: list[tuple[Any, ...]], then: list[tuple[Any, ...]]
) -> None:
    limit, fixed = sizes
    world = World(connection, limit=limit, fixed=fixed)

    run_steps(world, first + then)

    # An interrupted call is charged by its reservation, which is more than its usage.
    assert sum(world.calls) <= world.charged
    assert sum(world.calls) <= limit + max(world.calls, default=0)


def test_crash_charges_only_requests_that_were_sent(connection: Connection) -> None:
    world = World(connection, limit=100_000, fixed=1_000)
    for _ in range(3):
        world.accept(1.0, 500)
    waiting = usage.read_reservation(connection, world.running[2].turn.id)

    world.crash(2, OUTPUT)

    assert world.charged == 2 * (1_500 + OUTPUT)
    assert usage.read_reservation(connection, world.running[2].turn.id) == waiting
    world.crash(0, OUTPUT)  # no request was sent since
    assert world.charged == 2 * (1_500 + OUTPUT)


def test_call_that_may_exceed_the_limit_runs_alone(connection: Connection) -> None:
    world = World(connection, limit=10_000, fixed=20_000)

    world.accept(0.3, 10)
    world.accept(0.3, 10)

    assert len(world.running) == 1
    world.ask(0, 100, 0)
    assert 0 < world.charged < 10_000
    world.accept(0.3, 10)
    assert len(world.running) == 0  # 6,000 are left, and 7,600 are likely


def test_calls_that_fit_at_most_run_in_parallel(connection: Connection) -> None:
    world = World(connection, limit=100_000, fixed=20_000)

    for _ in range(10):
        world.accept(0.3, 10)

    assert len(world.running) == 4


def test_extra_call_of_a_turn_is_made_only_when_it_fits(connection: Connection) -> None:
    world = World(connection, limit=30_000, fixed=20_000)
    world.accept(0.3, 10)
    turn = world.running[0].turn

    small, large = RequestTokens.of_bytes(1_000), RequestTokens.of_bytes(10_000)

    assert world.budgets.allows_summary(connection, turn, small, percent=100)
    assert not world.budgets.allows_summary(connection, turn, large, percent=100)


def test_refusal_while_others_run_has_a_short_retry_after(connection: Connection) -> None:
    world = World(connection, limit=30_000, fixed=20_000)
    world.accept(0.3, 10)
    turn = world.running[0].turn

    with pytest.raises(BudgetSpent) as refused, connection.begin_nested():
        world.budgets.admit(connection, turn)

    assert refused.value.headers["Retry-After"] == "5"
