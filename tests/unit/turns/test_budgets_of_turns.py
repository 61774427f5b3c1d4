"""Turns under budgets: refused on acceptance, stopped while running, retried, and charged however they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from torana.agent import Bounds
from torana.agent.request_size import FixedTokens
from torana.api.problems import error_from
from torana.errors import BudgetSpent, ModelResponseTooLarge
from torana.limits.budgets import Budgets, Estimate
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.limits.usage_reports import Subject, UsageReport, report
from torana.memory import Memory
from torana.messages import Inbound, Turn, TurnState, Usage
from torana.store.backup import erasure
from torana.store.engine.database import Connection, Database
from torana.store.engine.tables import spending
from torana.store.rows import turns as rows
from torana.store.rows import usage
from torana.store.rows.audit import Act
from torana.store.rows.session_forks import NewSession, fork
from torana.store.rows.turns import Ending
from torana.testing import ScriptedModel
from torana.testing.scripted import Piece
from torana.tools import ToolContext
from torana.turns.approvals import Choice

Make = Callable[..., Any]
Message = Callable[..., Inbound]

DAY = "1000 tokens/day"
ONE = "1 messages/day"


class RecordingModel(ScriptedModel):
    """A scripted model that keeps its whole responses."""

    def __init__(self, *answers: str | Sequence[Piece]) -> None:
        super().__init__(*answers)
        self.responses: list[ModelResponse] = []

    @asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamedResponse]:
        async with super().request_stream(*args, **kwargs) as stream:
            yield stream
            self.responses.append(stream.get())


@pytest.fixture
def clock() -> Callable[[], datetime]:
    """A clock that stands still."""
    return lambda: datetime.fromisoformat("2026-03-02T09:30:00+00:00")


@pytest.fixture
def budgets(clock: Callable[[], datetime]) -> Callable[..., Budgets]:
    """``budgets("1000 tokens/day")`` limits ana; a call reserves 205 tokens for a short message."""

    def make(*limits: str) -> Budgets:
        return Budgets(
            limits=Limits(per_user=[parse_limit(text) for text in limits]),
            prices=Prices(),
            estimate=Estimate(output=100, overhead=100),
            clock=clock,
        )

    return make


@pytest.fixture
def level(clock: Callable[[], datetime]) -> Callable[[Database], Awaitable[UsageReport]]:
    """``await level(database)`` returns ana's usage of ``DAY``."""
    limits = Limits(per_user=[parse_limit(DAY)])
    return lambda database: database.run(
        partial(report, subject=Subject(user="ana"), limits=limits, days=1, at=clock())
    )


class Reader:
    """A tool with a result of the given size, and the number of its calls."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.runs = 0
        self.toolset = FunctionToolset[ToolContext](metadata={"permission": "allow"})
        self.toolset.add_function(self.read)

    def read(self) -> str:
        """Return the result."""
        self.runs += 1
        return "x" * self.size


def reading(call: str = "c", *, tool: str = "read") -> list[ToolCallPart]:
    return [ToolCallPart(tool, {}, tool_call_id=call)]


async def test_turn_over_budget_fails_keeps_its_steps_and_can_be_retried(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, database: Database, level: Make
) -> None:
    reader = Reader(4_000)
    model = ScriptedModel(["Let me see.", *reading()], "Done.")
    agent = open_agent(model, reader.toolset)
    turns = open_turns(agent=agent, budgets=budgets(DAY))

    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert failed.failure is not None
    assert (failed.state, failed.failure.code) == ("failed", "budget_spent")
    assert failed.failure.retry_after == 14.5 * 3600
    assert failed.failure.policies == ("user-tokens-day",)
    assert error_from(failed.failure).extra == {
        "retryAfterMs": 14.5 * 3_600_000,
        "violatedPolicies": ["user-tokens-day"],
    }
    assert "1000 tokens/day (TORANA_LIMITS_PER_USER)" in failed.failure.detail
    assert (len(model.requests), reader.runs) == (1, 1)
    spent = await level(database)
    assert (spent.limits[0].used, spent.limits[0].reserved) == (
        failed.usage.input_tokens + failed.usage.output_tokens,
        0,
    )
    assert failed.usage.input_tokens > 0

    with pytest.raises(BudgetSpent):  # the settled messages alone exceed the budget
        await turns.retry(failed.owner, failed.id)
    richer = open_turns(agent=agent, budgets=budgets("5000 tokens/day"))
    ended = await richer.reader.wait_for_end(await richer.retry(failed.owner, failed.id))

    assert (ended.reply, reader.runs) == ("Let me see.\n\nDone.", 1)
    spent = await level(database)
    assert spent.today.input_tokens == ended.usage.input_tokens
    assert (spent.today.messages, spent.limits[0].reserved) == (1, 0)


async def test_all_tools_of_a_step_run_before_the_budget_stops_the_turn(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message
) -> None:
    reader = Reader(2_000)
    calls = [ToolCallPart("read", {}, tool_call_id=str(n)) for n in range(3)]
    turns = open_turns(agent=open_agent(ScriptedModel(calls, "never"), reader.toolset), budgets=budgets(DAY))

    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert failed.failure is not None
    assert (failed.failure.code, reader.runs) == ("budget_spent", 3)


@pytest.fixture
def measured() -> FixedTokens:
    """A request measure that knows no tools when a message is accepted."""
    return FixedTokens(instruction_bytes=lambda: 0, tool_bytes=lambda: 0)


async def test_request_larger_than_estimated_is_not_sent(
    open_agent: Make,
    open_turns: Make,
    budgets: Make,
    message: Message,
    database: Database,
    level: Make,
    measured: FixedTokens,
) -> None:
    toolset = FunctionToolset[ToolContext](metadata={"permission": "allow"})
    toolset.add_function(Reader(1).read, description="x" * 9_000)
    model = ScriptedModel("never")
    turns = open_turns(agent=open_agent(model, toolset, fixed_tokens=measured), budgets=budgets(DAY))

    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert failed.failure is not None
    assert (failed.failure.code, model.requests) == ("budget_spent", [])
    spent = await level(database)
    assert (spent.limits[0].used, spent.limits[0].reserved) == (0, 0)


async def test_budget_counts_error_messages_about_invalid_calls(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, measured: FixedTokens
) -> None:
    wrong = ToolCallPart("read", {"size": "x" * 18_000})
    model = ScriptedModel([wrong], "never")
    agent = open_agent(model, Reader(1).toolset, fixed_tokens=measured)
    turns = open_turns(agent=agent, budgets=budgets("6000 tokens/day"))

    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert failed.failure is not None
    assert (failed.failure.code, len(model.requests)) == ("budget_spent", 1)


async def test_cut_off_response_is_charged(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, measured: FixedTokens
) -> None:
    model = ScriptedModel([LONG, ModelResponseTooLarge()])
    turns = open_turns(agent=open_agent(model, fixed_tokens=measured), budgets=budgets("100000 tokens/day"))

    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert failed.failure is not None
    assert failed.failure.code == "model_response_too_large"
    assert failed.usage.output_tokens == len(LONG) // 3
    assert 1_000 < failed.usage.input_tokens < 20_000


async def test_refused_retry_leaves_the_turn_failed(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, database: Database
) -> None:
    model = ScriptedModel([RuntimeError("broken")], [RuntimeError("again")], "yes")
    agent = open_agent(model)
    turns = open_turns(agent=agent, budgets=budgets("1 turns"))
    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana", key="k")))
    assert failed.state == "failed"

    strict = open_turns(agent=agent, budgets=budgets("5 tokens/day"))
    with pytest.raises(BudgetSpent):
        await strict.retry(failed.owner, failed.id)

    assert await strict.reader.get(failed.owner, failed.id) == failed
    again = await turns.reader.wait_for_end(await turns.retry(failed.owner, failed.id))
    assert again.state == "failed"


async def test_retry_counts_as_a_message_only_in_a_fork(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, database: Database, clock: Make
) -> None:
    turns = open_turns(agent=open_agent(ScriptedModel([RuntimeError("broken")], "yes")), budgets=budgets(ONE))
    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))
    new = NewSession(
        session_id="s-copy",
        channel="copy",
        at=clock() + timedelta(seconds=1),
        turn_id=lambda: "t-copy",
        title_of=str,
    )
    await database.run(partial(fork, owner=failed.owner, session_id=failed.session_id, last=None, new=new))

    with pytest.raises(BudgetSpent) as refused:
        await turns.retry(failed.owner, "t-copy")

    assert "user-messages-day" in str(refused.value.extra)
    again = await turns.reader.wait_for_end(await turns.retry(failed.owner, failed.id))
    assert again.state == "completed"


LONG = "hello there, " * 30


@pytest.mark.parametrize(
    ("bounds", "script", "answers"),
    [
        (Bounds(tokens=10), [[LONG, *reading()], "never"], 1),
        (Bounds(tokens=10), [LONG], 1),
        (Bounds(tool_calls=1), [[LONG, *reading(), *reading("d")], "never"], 1),
        (Bounds(model_calls=1), [[LONG, *reading(tool="unknown")], "never"], 1),
        (Bounds(), [[LONG, *reading(str(number), tool="unknown")] for number in range(5)], 4),
        (Bounds(), [[LONG, *reading(tool="unknown")], [RuntimeError("broken")]], 1),
    ],
)
async def test_failed_turn_is_charged_for_every_response(
    open_agent: Make,
    open_turns: Make,
    budgets: Make,
    message: Message,
    database: Database,
    level: Make,
    bounds: Bounds,
    script: list[Any],
    answers: int,
) -> None:
    model = ScriptedModel(*script)
    turns = open_turns(
        agent=open_agent(model, Reader(1).toolset, bounds=bounds), budgets=budgets("100000 tokens/day")
    )

    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert failed.state == "failed"
    assert failed.usage.output_tokens > answers * len(LONG.split())
    assert failed.usage.input_tokens > 0
    spent = await level(database)
    assert spent.today.output_tokens == failed.usage.output_tokens
    assert spent.today.input_tokens == failed.usage.input_tokens
    assert spent.limits[0].reserved == 0


async def test_repeatedly_failing_turns_exhaust_the_budget(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message
) -> None:
    model = ScriptedModel(*[LONG] * 20)
    agent = open_agent(model, bounds=Bounds(tokens=10))
    turns = open_turns(agent=agent, budgets=budgets(DAY))

    with suppress(BudgetSpent):
        for _ in range(20):
            await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert 0 < len(model.requests) < 20


async def test_reply_that_cannot_be_stored_is_charged(
    open_turns: Make, budgets: Make, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = rows.finish

    def only_failures(connection: Connection, turn: Turn, ending: Ending, *, hold: bool) -> Any:
        if ending.state == "completed":
            raise ValueError("too much")
        return finish(connection, turn, ending, hold=hold)

    monkeypatch.setattr(rows, "finish", only_failures)
    turns = open_turns(ScriptedModel(LONG), budgets=budgets(DAY))

    failed = await turns.reader.wait_for_end(await turns.accept(message(user="ana")))

    assert (failed.state, failed.usage.output_tokens > len(LONG.split())) == ("failed", True)


async def test_turn_cancelled_before_its_first_request_is_not_charged(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    recalling = asyncio.Event()

    async def recall(*_: object, **__: object) -> None:
        recalling.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Memory, "recall", recall)
    model = ScriptedModel("never")
    turns = open_turns(agent=open_agent(model), budgets=budgets(DAY))
    turn = await turns.accept(message(user="ana"))
    await recalling.wait()

    cancelled = await turns.cancel(turn.owner, turn.id)

    assert (cancelled.state, cancelled.usage, model.requests) == ("cancelled", Usage(), [])


async def test_turn_limits_hold_across_crashes(
    open_agent: Make, open_turns: Make, message: Message, boot: Make
) -> None:
    bounds = Bounds(model_calls=3, tool_calls=100)
    lives = [
        ScriptedModel(reading("1"), [asyncio.Event()]),
        ScriptedModel(reading("2"), [asyncio.Event()]),
        ScriptedModel(reading("3"), "never"),
    ]
    turn = None
    for model in lives[:2]:
        gateway = await boot(model, Reader(1).toolset, bounds=bounds)
        turn = turn or await gateway.turns.accept(message(user="ana"))
        await model.asked(2)
        await gateway.crash()
    gateway = await boot(lives[2], Reader(1).toolset, bounds=bounds)

    assert turn is not None
    ended = await gateway.turns.reader.wait_for_end(turn)

    assert (ended.failure and ended.failure.code, len(lives[2].requests)) == ("turn_limit", 1)


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_ended_turn_leaves_no_reservation(
    open_agent: Make,
    open_turns: Make,
    budgets: Make,
    message: Message,
    database: Database,
    level: Make,
    state: TurnState,
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    pieces = {"completed": ["yes"], "failed": [RuntimeError("broken")], "cancelled": [gate]}[state]
    toolset = FunctionToolset[ToolContext](metadata={"permission": "allow"})

    @toolset.tool_plain
    def read() -> str:
        begun.set()
        return "short"

    del read
    agent = open_agent(ScriptedModel(reading(), pieces), toolset)
    turns = open_turns(agent=agent, budgets=budgets(DAY))
    turn = await turns.accept(message(user="ana"))
    await begun.wait()
    if state == "cancelled":
        await turns.cancel(turn.owner, turn.id)

    ended = (
        await turns.reader.wait_for_end(turn)
        if state != "cancelled"
        else await turns.reader.get(turn.owner, turn.id)
    )

    assert ended.state == state
    spent = await level(database)
    assert spent.limits[0].reserved == 0
    assert spent.today.input_tokens == ended.usage.input_tokens
    # Steps settled before the end are charged; a cancelled turn may not have settled one.
    assert ended.usage.input_tokens > 0 or state == "cancelled"


async def wait_for_question(turns: Any, turn: Turn) -> None:
    async for event in turns.reader.events(turn):
        if event.type == "approval.required":
            return


async def approve(turns: Any, turn: Turn) -> None:
    act = Act(principal="operator", source="test", at=turn.created_at)
    await turns.approvals.decide(turn.owner, turn.id, "c", Choice(approve=True), act)


async def test_turn_that_waits_for_an_approval_reserves_nothing(
    open_agent: Make,
    open_turns: Make,
    budgets: Make,
    message: Message,
    database: Database,
    level: Make,
    measured: FixedTokens,
) -> None:
    reader = Reader(10)
    toolset = FunctionToolset[ToolContext](metadata={"permission": "ask"})
    toolset.add_function(reader.read)
    gate = asyncio.Event()
    model = RecordingModel(reading(), [gate, "Done."])
    agent = open_agent(model, toolset, fixed_tokens=measured)
    turns = open_turns(agent=agent, budgets=budgets("100000 tokens/day"))
    turn = await turns.accept(message(user="ana"))
    await wait_for_question(turns, turn)

    waiting = await level(database)
    assert (waiting.limits[0].used, waiting.limits[0].reserved) == (
        waiting.today.input_tokens + waiting.today.output_tokens,
        0,
    )
    assert waiting.today.input_tokens == model.responses[0].usage.input_tokens

    await approve(turns, turn)
    await model.asked(2)
    assert (await level(database)).limits[0].reserved > 0
    gate.set()
    ended = await turns.reader.wait_for_end(turn)

    assert (ended.reply, reader.runs) == ("Done.", 1)
    spent = await level(database)
    assert spent.limits[0].reserved == 0
    assert spent.today.input_tokens == sum(one.usage.input_tokens for one in model.responses)


async def test_refusal_before_a_question_does_not_count_after_the_decision(
    open_agent: Make, open_turns: Make, message: Message, measured: FixedTokens
) -> None:
    now = [datetime.fromisoformat("2026-03-02T09:30:00+00:00")]
    limits = Limits(per_user=[parse_limit(DAY)])
    estimate = Estimate(output=100, overhead=100)
    budgets = Budgets(limits=limits, prices=Prices(), estimate=estimate, clock=lambda: now[0])
    toolset = FunctionToolset[ToolContext](metadata={"permission": "ask"})
    toolset.add_function(Reader(10).read)
    model = ScriptedModel([LONG * 10, *reading()], "Done.")
    turns = open_turns(agent=open_agent(model, toolset, fixed_tokens=measured), budgets=budgets)
    turn = await turns.accept(message(user="ana"))
    await wait_for_question(turns, turn)

    now[0] += timedelta(days=1)
    await approve(turns, turn)

    assert (await turns.reader.wait_for_end(turn)).state == "completed"


async def test_steering_message_releases_its_reservation_at_the_end(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, database: Database, level: Make
) -> None:
    gate = asyncio.Event()
    turns = open_turns(agent=open_agent(ScriptedModel(["", gate, "one"], "two")), budgets=budgets(DAY))
    first = await turns.accept(message(user="ana"))
    second = await turns.accept(message(user="ana", on_busy="steer"))
    assert (await level(database)).limits[0].reserved == 2 * 205
    gate.set()
    await turns.reader.wait_for_end(first)
    await turns.reader.wait_for_end(second)

    assert (await level(database)).limits[0].reserved == 0
    assert (await level(database)).today.messages == 2


@pytest.mark.parametrize("steps", [0, 1])
async def test_retry_after_timeout_is_charged_for_both_calls(
    open_agent: Make,
    open_turns: Make,
    budgets: Make,
    message: Message,
    database: Database,
    level: Make,
    steps: int,
) -> None:
    model = RecordingModel(*[reading()] * steps, ["Let me", asyncio.Event()], "Done.")
    agent = open_agent(model, Reader(10).toolset)
    hasty = open_turns(agent=agent, budgets=budgets(DAY), turn_timeout=0.5)
    stopped = await hasty.reader.wait_for_end(await hasty.accept(message(user="ana")))
    assert stopped.failure is not None
    assert stopped.failure.code == "turn_timeout"

    turns = open_turns(agent=agent, budgets=budgets(DAY))
    ended = await turns.reader.wait_for_end(await turns.retry(stopped.owner, stopped.id))

    *settled, last = model.responses
    assert len(settled) == steps
    assert stopped.usage.input_tokens > sum(response.usage.input_tokens for response in settled)
    assert ended.usage.input_tokens == stopped.usage.input_tokens + last.usage.input_tokens
    assert ended.usage.output_tokens == stopped.usage.output_tokens + last.usage.output_tokens
    spent = await level(database)
    assert spent.today.input_tokens == ended.usage.input_tokens
    assert spent.limits[0].used == ended.usage.input_tokens + ended.usage.output_tokens


async def test_summary_that_ends_after_an_erasure_stores_no_channel(
    open_agent: Make, open_turns: Make, budgets: Make, message: Message, database: Database
) -> None:
    limits = budgets("100000 tokens/day")
    turns = open_turns(agent=open_agent(ScriptedModel("Done.")), budgets=limits)
    turn = await turns.reader.wait_for_end(await turns.accept(message(user="ana", channel="my divorce")))
    act = Act(principal="operator", source="test", at=turn.created_at)
    await database.run(partial(erasure.erase, user="ana", act=act, earlier=(), tokens_revoked=0))
    summary = ModelResponse(parts=[], usage=RequestUsage(input_tokens=70_000, output_tokens=7))

    await database.run(partial(limits.charge, turn=turn, responses=[summary]))

    rows = await database.run(lambda connection: connection.execute(sa.select(spending)).mappings().all())
    assert {row["channel"] for row in rows} == {""}
    assert sum(row["input_tokens"] for row in rows) > 70_000


async def test_call_that_an_orderly_stop_interrupts_is_charged(
    open_agent: Make,
    open_turns: Make,
    budgets: Make,
    message: Message,
    database: Database,
    level: Make,
    measured: FixedTokens,
) -> None:
    model = RecordingModel([asyncio.Event()], "Done.")
    agent = open_agent(model, fixed_tokens=measured)
    before = open_turns(agent=agent, budgets=budgets("100000 tokens/day"))
    turn = await before.accept(message(user="ana"))
    async with asyncio.timeout(20):
        while not model.requests:
            await database.run(lambda connection: connection.closed)
    reserved = (await database.run(partial(usage.read_reservation, turn_id=turn.id))).tokens
    await before.stop(grace=0)

    spent = (await level(database)).today
    assert spent.input_tokens + spent.output_tokens == reserved > 0
    after = open_turns(agent=agent, budgets=budgets("100000 tokens/day"))
    await after.start()
    ended = await after.reader.wait_for_end(turn)
    assert ended.reply == "Done."
    [last] = model.responses
    spent = (await level(database)).today
    assert (
        spent.input_tokens + spent.output_tokens
        == reserved + last.usage.input_tokens + last.usage.output_tokens
    )
