"""The process crashes at each point in turn: before and after each commit, and around each step.

A scenario runs once without a crash and records all points that it passes. Then, for each point, it runs again
with a crash there, and a new process finishes it from the same file. Users must see the same as without the
crash.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse
from pydantic_ai.messages import UserPromptPart as UserPrompt
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from tests.assembling import turns_over
from tests.waiting import until_death

from torana.agent import TurnAgent
from torana.agent.journal_hooks import UNKNOWN_OUTCOME
from torana.errors import AlreadyDecided
from torana.limits.budgets import Budgets
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.messages import GATEWAY_OWNER, Inbound, OnBusy, Turn
from torana.store.rows.audit import Act
from torana.testing import Faults, MortalDatabase
from torana.tools import ToolContext
from torana.turns import Turns
from torana.turns.approvals import Choice

#: The number of tested pairs of crashes: every single crash is tested, but all pairs would take an hour.
PAIRS = 300 if float(os.environ.get("TORANA_CHAOS_SECONDS", "0")) >= 300 else 12

#: Large enough to refuse nothing, so that every call makes a reservation.
AMPLE = Limits(overall=[parse_limit("1000000000 tokens/minute"), parse_limit("1000 turns")])

Step = tuple[str, Sequence[str]]
Row = dict[str, Any]

#: The model's behaviour for a message, request by request: it sends a text and calls tools.
PLANS: dict[str, list[Step]] = {
    "write it down": [("First.", ["append"]), ("Then.", ["look"]), ("Written.", [])],
    "and then?": [("Nothing more.", [])],
    "do both": [("Both.", ["append", "look"]), ("Done.", [])],
    "thank you": [("You are welcome.", [])],
    "pay": [("I shall.", ["pay", "append"]), ("Paid.", [])],
    "pay more": [("I would.", ["pay"]), ("Not paid.", [])],
    "work": [("Working.", ["append"]), ("On it.", ["hold"]), ("Finished.", [])],
}


@dataclass
class World:
    """State outside the process: the written lines, the model requests, and the client's knowledge."""

    lines: list[str] = field(default_factory=list[str])
    #: The number of model requests for a step of a message.
    requests: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    #: Turns by content, in the order of acknowledgement.
    acknowledged: dict[str, Turn] = field(default_factory=dict[str, Turn])
    #: Messages that the client does not send again, because it cannot know whether they arrived.
    lost: set[str] = field(default_factory=set[str])


@dataclass
class Hold:
    """A tool that does not return before the test releases it."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)


class Client:
    """Sends messages in one process after another until it knows their outcome."""

    def __init__(self, *, world: World, turns: Turns, hold: Hold) -> None:
        self.world = world
        self.turns = turns
        self.hold = hold

    async def send(self, content: str, *, channel: str, keyed: bool = True, on_busy: OnBusy = "queue") -> None:
        """Send a message unless it was acknowledged; without a key at most once."""
        if content in self.world.acknowledged or content in self.world.lost:
            return
        if not keyed:
            self.world.lost.add(content)
        inbound = Inbound(
            owner=GATEWAY_OWNER,
            principal="local",
            content=content,
            channel=channel,
            user=None,
            key=content if keyed else None,
            on_busy=on_busy,
        )
        self.world.acknowledged[content] = await self.turns.accept(inbound)
        self.world.lost.discard(content)

    async def answers(self) -> None:
        """Wait for the end of all acknowledged turns."""
        for turn in self.world.acknowledged.values():
            await self.turns.reader.wait_for_end(turn)

    async def decide(self, content: str, *, approve: bool) -> None:
        """Decide the approval of the message's turn; an earlier process may have done so."""
        turn = self.world.acknowledged[content]
        async for event in self.turns.reader.events(turn):
            if event.type == "approval.required":
                choice = Choice(approve=approve)
                act = Act(principal="operator", source="test", at=turn.created_at)
                with suppress(AlreadyDecided):
                    await self.turns.approvals.decide(turn.owner, turn.id, event.data["callId"], choice, act)
                return

    async def wait_for_last_tool(self, content: str) -> None:
        """Wait until the message's turn runs its last tool, or has ended."""
        ended = asyncio.ensure_future(self.turns.reader.wait_for_end(self.world.acknowledged[content]))
        begun = asyncio.ensure_future(self.hold.begun.wait())
        await asyncio.wait({ended, begun}, return_when=asyncio.FIRST_COMPLETED)


Scenario = Callable[[Client], Awaitable[None]]


async def run_turns(client: Client) -> None:
    """Two sessions, one with a queued message; tools one by one and two at a time."""
    await client.send("write it down", channel="kitchen")
    await client.send("and then?", channel="kitchen")
    await client.send("do both", channel="garage", keyed=False)
    await client.answers()
    await client.send("thank you", channel="kitchen")
    await client.answers()


async def run_steered_turn(client: Client) -> None:
    """A message that steers the running turn, and one that is queued behind both."""
    await client.send("work", channel="kitchen")
    await client.wait_for_last_tool("work")
    await client.send("faster", channel="kitchen", on_busy="steer")
    await client.send("thank you", channel="kitchen")
    client.hold.let_go.set()
    await client.answers()


async def run_cancelled_turn(client: Client) -> None:
    """A turn that is cancelled while a tool runs, and one behind it."""
    await client.send("work", channel="kitchen")
    await client.send("thank you", channel="kitchen")
    await client.wait_for_last_tool("work")
    await client.turns.cancel(GATEWAY_OWNER, client.world.acknowledged["work"].id)
    await client.answers()


async def run_interrupted_turn(client: Client) -> None:
    """A turn that is interrupted by another one, which runs before the queued one."""
    await client.send("work", channel="kitchen")
    await client.send("and then?", channel="kitchen")
    await client.wait_for_last_tool("work")
    await client.send("thank you", channel="kitchen", on_busy="interrupt")
    await client.answers()


async def run_approvals(client: Client) -> None:
    """Two turns that wait for approvals, one approved and one denied, and one behind them."""
    await client.send("pay", channel="kitchen")
    await client.send("and then?", channel="kitchen")
    await client.decide("pay", approve=True)
    await client.turns.reader.wait_for_end(client.world.acknowledged["and then?"])
    await client.send("pay more", channel="kitchen")
    await client.decide("pay more", approve=False)
    await client.answers()


class PlannedModel(FunctionModel):
    """Follows ``PLANS`` by the messages that it receives, and may crash before, during and after a response."""

    def __init__(self, *, world: World, faults: Faults) -> None:
        super().__init__(stream_function=self._stream, model_name="planned")
        self._world = world
        self._faults = faults

    async def _stream(self, messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        content, number = _stands(messages)
        self._world.requests[content, number] += 1
        await self._faults.at("the model was asked")
        text, tools = PLANS[content][number]
        yield text
        await self._faults.at("the model speaks")
        for place, name in enumerate(tools):
            # Another response to the same request has other ids.
            call_id = f"{content}-{number}-{place}-{self._world.requests[content, number]}"
            yield {place: DeltaToolCall(name, f'{{"line": "{content}"}}', tool_call_id=call_id)}
        await self._faults.at("the model has spoken")


def _stands(messages: Sequence[ModelMessage]) -> tuple[str, int]:
    """Return the message that the model is answering, and the number of its responses to it."""
    starts = [
        (place, part.content)
        for place, message in enumerate(messages)
        if isinstance(message, ModelRequest)
        for part in message.parts[:1]
        if isinstance(part, UserPrompt) and isinstance(part.content, str)
    ]
    place, content = starts[-1]
    return content, sum(isinstance(message, ModelResponse) for message in messages[place:])


def toolset(world: World, faults: Faults, holding: Hold) -> FunctionToolset[ToolContext]:
    """Return one tool that must not run twice, and two that may."""

    async def append(line: str) -> str:
        """Write a line."""
        await faults.at("append begins")
        world.lines.append(line)
        await faults.at("append has written")
        return "appended"

    async def pay(line: str) -> str:
        """Pay, after an approval."""
        await faults.at("pay begins")
        world.lines.append(f"paid for {line}")
        await faults.at("pay has paid")
        return "appended"

    async def look(line: str) -> str:
        """Look something up."""
        await faults.at("look begins")
        return f"seen: {line}"

    async def hold(line: str) -> str:
        """Take a while."""
        await faults.at("hold begins")
        holding.begun.set()
        await holding.let_go.wait()
        return f"held: {line}"

    tools = FunctionToolset[ToolContext]()
    tools.add_function(append, metadata={"idempotent": False, "permission": "allow"})
    tools.add_function(pay, metadata={"idempotent": False, "permission": "ask"})
    tools.add_function(look, metadata={"idempotent": True, "permission": "allow"})
    tools.add_function(hold, metadata={"idempotent": True, "permission": "allow"})
    return tools


#: ``live(world, scenario, path, die_at=…)`` runs one process to its end or its crash.
Live = Callable[..., Faults]


@pytest.fixture
def live(open_agent: Callable[..., TurnAgent], clock: Callable[[], datetime]) -> Live:
    """Runs of a process on a file."""

    def one_life(world: World, scenario: Scenario, path: Path, *, die_at: str | None = None) -> Faults:
        faults = Faults(die_at=die_at)
        database = MortalDatabase(path=path, faults=faults)
        hold = Hold()
        model = PlannedModel(world=world, faults=faults)
        turns = turns_over(
            database,
            open_agent(model, toolset(world, faults, hold), database=database),
            budgets=Budgets(limits=AMPLE, prices=Prices(), clock=clock),
            clock=clock,
        )

        async def live_once() -> None:
            await turns.start()
            await scenario(Client(world=world, turns=turns, hold=hold))
            await turns.stop(grace=0)

        try:
            asyncio.run(until_death(live_once, faults))
        finally:
            database.close()
        return faults

    return one_life


@pytest.fixture
def new_file(path: Path, tmp_path: Path) -> Callable[[], Path]:
    """Copies of the empty database, which is created once."""
    made: list[Path] = []

    def copy() -> Path:
        made.append(tmp_path / f"{len(made)}.db")
        shutil.copy(path, made[-1])
        return made[-1]

    return copy


#: A crash may leave coroutines that were never started. Python reports each one, but cannot do so if it frees
#: the coroutine in code without builtins, such as that of ``namedtuple``: then it reports a KeyError.
unstarted_coroutines = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited",
    "ignore:Exception ignored in. <coroutine object:pytest.PytestUnraisableExceptionWarning",
)

SCENARIOS: list[Scenario] = [
    run_turns,
    run_steered_turn,
    run_cancelled_turn,
    run_interrupted_turn,
    run_approvals,
]


@unstarted_coroutines
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_crash_at_any_point_changes_nothing(
    live: Live, new_file: Callable[[], Path], scenario: Scenario, subtests: pytest.Subtests
) -> None:
    world, path = World(), new_file()
    clean = live(world, scenario, path)
    expected = Seen(path)
    expected.check(world)

    assert len(clean.reached) == len(set(clean.reached)) > 30
    missed: list[str] = []
    for place in clean.reached:
        with subtests.test(place=place):
            world, path = World(), new_file()
            died = live(world, scenario, path, die_at=place)
            if died.reached[-1] != place:
                missed.append(place)  # the store's thread was faster or slower: not every run passes there
            settled = settled_steps(path)
            before = Counter(world.requests)
            live(world, scenario, path)

            seen = Seen(path)
            seen.check(world)
            assert {step: world.requests[step] - before[step] for step in settled} == dict.fromkeys(settled, 0)
            assert seen.replies(world) == expected.replies(world)
            assert seen.known_history(world) == expected.known_history(world)
    assert len(missed) <= len(clean.reached) // 10


@unstarted_coroutines
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_second_crash_during_recovery_changes_nothing(
    live: Live, new_file: Callable[[], Path], scenario: Scenario, subtests: pytest.Subtests
) -> None:
    world, path = World(), new_file()
    clean = live(world, scenario, path)
    expected = Seen(path)
    for first, second in _pairs(clean.reached):
        with subtests.test(first=first, second=second):
            world, path = World(), new_file()
            live(world, scenario, path, die_at=first)
            live(world, scenario, path, die_at=second)
            live(world, scenario, path)

            seen = Seen(path)
            seen.check(world)
            assert seen.replies(world) == expected.replies(world)


@unstarted_coroutines
def test_steering_message_fails_with_its_abandoned_turn(live: Live, new_file: Callable[[], Path]) -> None:
    world, path = World(), new_file()
    live(world, run_steered_turn, path, die_at="the model was asked 3")
    for _ in range(5):  # two crashes make the turn suspect, and three while it runs alone are enough
        live(world, run_steered_turn, path, die_at="the model was asked 1")
    live(world, run_steered_turn, path)

    ends = [(row["content"], row["state"], row["failure_code"]) for row in Seen(path).turns]
    assert ends == [
        ("work", "failed", "crashed_repeatedly"),
        ("faster", "failed", "crashed_repeatedly"),
        ("thank you", "completed", None),
    ]
    assert world.requests["work", 2] == 6


def _pairs(places: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of crashes; points that only a second process passes are included by name."""
    recovery = [f"{name} 1 {when} its commit" for name in ("recover", "load") for when in ("before", "after")]
    pairs = [(first, second) for first in places for second in dict.fromkeys([*recovery, *places])]
    return random.Random(1).sample(pairs, min(PAIRS, len(pairs)))


def rows(path: Path, statement: str) -> list[Row]:
    """Return rows of a database file, read from outside."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(statement)]


def settled_steps(path: Path) -> list[tuple[str, int]]:
    """Return the model responses in the journal, by message and step."""
    found = rows(path, "SELECT content, number FROM steps JOIN turns ON turns.id = steps.turn_id")
    return [(row["content"], row["number"]) for row in found]


class Seen:
    """The contents of a database file after everything has ended."""

    def __init__(self, path: Path) -> None:
        self.turns = rows(path, "SELECT * FROM turns ORDER BY session_id, seq")
        self.history = rows(
            path,
            "SELECT history.seq, turns.content, turns.channel, body FROM history "
            "JOIN turns ON turns.id = history.turn_id ORDER BY turns.channel, history.seq",
        )
        self.journal = rows(
            path,
            "SELECT id FROM turns WHERE state = 'completed' "
            "AND id IN (SELECT turn_id FROM steps UNION SELECT turn_id FROM calls)",
        )
        self.approvals = rows(path, "SELECT turn_id, state FROM approvals")
        self.audit = rows(path, "SELECT target FROM audit WHERE action LIKE 'approval.%'")
        self.usage = rows(path, "SELECT * FROM usage WHERE account = 'gateway' AND length(period) = 10")

    def check(self, world: World) -> None:
        """Check what holds after any crash."""
        by_content = Counter(row["content"] for row in self.turns)
        assert by_content.keys() >= world.acknowledged.keys()
        assert set(by_content.values()) == {1}
        by_id = {row["id"]: row for row in self.turns}
        acknowledged = [by_id[turn.id] for turn in world.acknowledged.values()]
        assert [row["state"] for row in self.turns if row["ended_at"] is None] == []
        assert {row["state"] for row in self.turns} <= {"completed", "cancelled"}
        for channel in {row["channel"] for row in acknowledged}:
            order = [row["seq"] for row in acknowledged if row["channel"] == channel]
            assert order == sorted(order)
        assert self.journal == []
        # All usage is charged, and no reservation remains.
        assert {row["reserved_tokens"] for row in [*self.turns, *self.usage]} == {0}
        assert sum(row["messages"] for row in self.usage) == len(self.turns)
        for tokens in ("input_tokens", "output_tokens"):
            assert sum(row[tokens] for row in self.usage) == sum(row[tokens] for row in self.turns)
        assert len(world.lines) == len(set(world.lines))
        # One approval for each call, one decision for each approval, and no denied call ran.
        assert len(self.approvals) == len({row["turn_id"] for row in self.approvals})
        assert {row["state"] for row in self.approvals} <= {"approved", "denied"}
        assert sorted(row["target"] for row in self.audit) == sorted(row["turn_id"] for row in self.approvals)
        assert "paid for pay more" not in world.lines
        said = [
            row["content"] for row in self.history if ("tool-return", "append", "appended") in _parts_of(row)
        ]
        assert set(said) <= set(world.lines)

    def replies(self, world: World) -> list[tuple[Any, ...]]:
        """Return the outcomes of the acknowledged messages."""
        merged = {row["id"]: row["content"] for row in self.turns}
        return sorted(
            (row["content"], row["state"], row["reply"], row["failure_code"], merged.get(row["merged_into"]))
            for row in self.turns
            if row["content"] in world.acknowledged
        )

    def known_history(self, world: World) -> list[Any]:
        """Return the history of the acknowledged messages, with every outcome known."""
        return [
            (row["channel"], row["content"], [_same(part) for part in _parts_of(row)])
            for row in self.history
            if row["content"] in world.acknowledged
        ]


def _parts_of(row: Row) -> list[tuple[str, Any, Any]]:
    """Return the parts of a turn's messages: kind, tool and content."""
    return [
        (
            part.part_kind,
            getattr(part, "tool_name", None),
            getattr(part, "content", getattr(part, "args", None)),
        )
        for message in ModelMessagesTypeAdapter.validate_json(row["body"])
        for part in message.parts
    ]


_MAY_BE_UNKNOWN = [("append", UNKNOWN_OUTCOME), ("pay", UNKNOWN_OUTCOME)]


def _same(part: tuple[str, Any, Any]) -> tuple[str, Any, Any]:
    """Return the part without the one value that a crash may change."""
    return (*part[:2], "appended") if part[1:] in _MAY_BE_UNKNOWN else part
