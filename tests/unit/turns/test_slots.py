"""A turn gives its slot away only while all of its unfinished calls wait for an approval."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ToolCallPart

from torana.messages import File, Inbound, Turn
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.turns.approvals import Choice

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


@dataclass
class Works:
    """A tool that may run and a tool that needs approval; both run until the test releases them."""

    begun: list[str] = field(default_factory=list[str])
    gates: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def run(self, name: str) -> str:
        """Run."""
        self.begun.append(name)
        await self.gates[name].wait()
        return "ran"

    async def ask(self, name: str) -> str:
        """Run after an approval."""
        return await self.run(name)

    def toolset(self) -> FunctionToolset[ToolContext]:
        tools = FunctionToolset[ToolContext]()
        tools.add_function(self.run, metadata={"permission": "allow"})
        tools.add_function(self.ask, metadata={"permission": "ask"})
        return tools


@pytest.fixture
def works() -> Works:
    return Works()


def call(tool: str, name: str) -> ToolCallPart:
    return ToolCallPart(tool, {"name": name}, tool_call_id=name)


async def until_asked(gateway: Any, turn: Turn, times: int) -> None:
    while len(await gateway.turns.approvals.open_of(turn.owner, turn.id)) < times:
        await gateway.look()


async def test_turn_timeout_starts_when_the_turn_gets_a_slot(
    boot: Boot, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await boot(obedient=True, concurrency=1, turn_timeout=60)
    first = await gateway.turns.accept(message("1", channel="a"))
    second = await gateway.turns.accept(message("2", channel="b"))
    await gateway.agent.until("1")
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + 61)

    assert (await gateway.turns.reader.wait_for_end(first)).failure.code == "turn_timeout"

    await gateway.agent.until("2")
    gateway.agent.end("2")
    assert (await gateway.turns.reader.wait_for_end(second)).state == "completed"


async def test_users_with_waiting_turns_get_free_slots_in_turn(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True, concurrency=1)
    for content in ("ana 1", "ana 2", "ana 3"):
        await gateway.turns.accept(message(content, channel=content, user="ana"))
    last = await gateway.turns.accept(message("ben 1", channel="ben", user="ben"))

    await gateway.agent.until("ana 1")
    gateway.agent.end("ana 1")
    await gateway.agent.until("ben 1")
    gateway.agent.end("ben 1")

    assert (await gateway.turns.reader.wait_for_end(last)).state == "completed"


async def test_turns_with_files_wait_for_those_of_their_user(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    note = File(name="note.txt", media_type="text/plain", body=b"x")
    for number in range(6):
        content = f"ana {number}"
        await gateway.turns.accept(message(content, channel=content, user="ana", files=(note,)))
    await gateway.turns.accept(message("ana without", channel="without", user="ana"))
    await gateway.turns.accept(message("ben", channel="ben", user="ben", files=(note,)))

    running = {"ana 0", "ana 1", "ana 2", "ana 3", "ana without", "ben"}
    await gateway.agent.until(*running)
    await nothing_new(gateway)
    await gateway.agent.until(*running)
    gateway.agent.end("ana 1")

    await gateway.agent.until(*running - {"ana 1"}, "ana 4")


async def test_cancelled_turn_that_waits_for_its_second_slot_gives_the_first_back(
    boot: Boot, message: Message
) -> None:
    gateway = await boot(obedient=True, concurrency=1)
    note = File(name="note.txt", media_type="text/plain", body=b"x")
    await gateway.turns.accept(message("first", channel="first", user="ana"))
    for number in range(4):
        turn = await gateway.turns.accept(message(str(number), channel=str(number), user="ana", files=(note,)))
        await nothing_new(gateway)
        await gateway.turns.cancel(turn.owner, turn.id)
    await gateway.turns.accept(message("last", channel="last", user="ana", files=(note,)))
    gateway.agent.end("first")

    await gateway.agent.until("last")


async def approve(gateway: Any, turn: Turn, name: str) -> None:
    act = Act(principal="operator", source="test", at=turn.created_at)
    choice = Choice(approve=True)
    await gateway.turns.approvals.decide(turn.owner, turn.id, name, choice, act)


async def nothing_new(gateway: Any) -> None:
    """Give every task that could continue the time to do so."""
    for _ in range(20):
        await gateway.look()


async def test_turn_keeps_its_slot_while_one_of_its_calls_runs(
    boot: Boot, works: Works, message: Message
) -> None:
    model = ScriptedModel([call("ask", "a"), call("run", "b")], "elsewhere", "Done.")
    gateway = await boot(model, works.toolset(), concurrency=1)
    turn = await gateway.turns.accept(message())
    await until_asked(gateway, turn, 1)
    other = await gateway.turns.accept(message(channel="other"))
    await nothing_new(gateway)
    assert (works.begun, len(model.requests)) == (["b"], 1)

    works.gates["b"].set()

    assert (await gateway.turns.reader.wait_for_end(other)).reply == "elsewhere"
    works.gates["a"].set()
    await approve(gateway, turn, "a")
    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Done."


async def test_approved_calls_need_a_slot_while_another_approval_is_open(
    boot: Boot, works: Works, message: Message
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(
        [call("ask", "a"), call("ask", "b"), call("ask", "c")], [gate, "other"], "third", "Done."
    )
    gateway = await boot(model, works.toolset(), concurrency=1)
    turn = await gateway.turns.accept(message())
    await until_asked(gateway, turn, 3)
    other = await gateway.turns.accept(message(channel="other"))
    await model.asked(2)
    await approve(gateway, turn, "a")
    await approve(gateway, turn, "b")
    await nothing_new(gateway)
    assert works.begun == []  # there is no free slot

    gate.set()
    await gateway.turns.reader.wait_for_end(other)
    while len(works.begun) < 2:
        await gateway.look()
    third = await gateway.turns.accept(message(channel="third"))
    works.gates["a"].set()
    await nothing_new(gateway)
    assert len(model.requests) == 2

    works.gates["b"].set()
    assert (await gateway.turns.reader.wait_for_end(third)).reply == "third"
    works.gates["c"].set()
    await approve(gateway, turn, "c")
    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Done."


async def test_turn_timeout_counts_while_one_of_its_calls_runs(
    boot: Boot, works: Works, message: Message
) -> None:
    model = ScriptedModel([call("ask", "a"), call("run", "b")])
    gateway = await boot(model, works.toolset(), turn_timeout=1)
    turn = await gateway.turns.accept(message())

    async with asyncio.timeout(30):
        ended = await gateway.turns.reader.wait_for_end(turn)

    assert ended.failure is not None
    assert (ended.failure.code, works.begun) == ("turn_timeout", ["b"])
