"""Turns on a real store against a simple model: sessions are queues, and a restart loses nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from torana.agent import Answer, Emit
from torana.errors import ModelFailed
from torana.messages import Inbound, Reply, Turn, Usage
from torana.store.database import Database
from torana.store.migrate import migrate
from torana.turns import Turns
from torana.turns.log.memory import MemoryEventLog

CHANNELS = ("a", "b", "c")


class OnCommand:
    """An agent that answers a turn when it is told to."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Future[str]] = {}

    async def run(self, turn: Turn, emit: Emit) -> Answer:
        self.asked[turn.id] = asyncio.get_running_loop().create_future()
        try:
            text = await self.asked[turn.id]
        finally:
            del self.asked[turn.id]
        emit("message.delta", {"text": text})
        return Answer(reply=Reply(text=text, model="m", usage=Usage()), history=(b"[]", 1))


class TurnsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.queues: dict[str, list[Turn]] = {channel: [] for channel in CHANNELS}
        self.expected: dict[str, str] = {}
        self.attempts: dict[str, int] = {}

    @initialize()
    def begin(self) -> None:
        migrate(self.directory / "torana.db")
        self.runner.run(self.open())

    async def open(self) -> None:
        self.agent = OnCommand()
        self.database = Database(path=self.directory / "torana.db")
        self.turns = Turns(database=self.database, agent=self.agent, log=MemoryEventLog(), turn_timeout=60)
        await self.turns.start()
        self.note_starts()
        await self.settle()

    async def close(self) -> None:
        await self.turns.stop(grace=0)
        self.database.close()

    async def settle(self) -> None:
        """Until every session's first turn has reached the agent, and nothing else has."""
        heads = {queue[0].id for queue in self.queues.values() if queue}
        while set(self.agent.asked) != heads:
            assert set(self.agent.asked) <= heads
            await asyncio.sleep(0)

    def note_starts(self) -> None:
        for queue in self.queues.values():
            if queue:
                self.attempts[queue[0].id] = self.attempts.get(queue[0].id, 0) + 1

    @rule(channel=strategies.sampled_from(CHANNELS), text=strategies.text(min_size=1, max_size=20))
    def accept(self, channel: str, text: str) -> None:
        inbound = Inbound(owner="gateway", principal="local", content=text, channel=channel)
        turn = self.runner.run(self.turns.accept(inbound))
        queue = self.queues[channel]
        queue.append(turn)
        assert turn.state == ("running" if len(queue) == 1 else "queued")
        if len(queue) == 1:
            self.attempts[turn.id] = 1
        self.runner.run(self.settle())

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=strategies.data(), text=strategies.text(max_size=20), fails=strategies.booleans())
    def end(self, data: strategies.DataObject, text: str, fails: bool) -> None:
        channel = data.draw(strategies.sampled_from([c for c in CHANNELS if self.queues[c]]))
        self.runner.run(self.end_first(channel, text, fails))

    async def end_first(self, channel: str, text: str, fails: bool) -> None:
        turn = self.queues[channel].pop(0)
        answered = self.agent.asked[turn.id]
        if fails:
            answered.set_exception(ModelFailed(text or "no words"))
        else:
            answered.set_result(text)
        ended = await self.turns.ended(turn)
        assert ended.state == ("failed" if fails else "completed")
        self.expected[turn.id] = f"failed {text or 'no words'}" if fails else f"completed {text}"
        assert [event.id async for event in self.turns.events(ended)][-1].startswith(f"{ended.attempt}-")
        if self.queues[channel]:
            following = self.queues[channel][0]
            self.attempts[following.id] = 1
        await self.settle()

    @rule()
    def restart(self) -> None:
        async def again() -> None:
            await self.close()
            await self.open()

        self.runner.run(again())

    @invariant()
    def the_database_says_what_the_model_says(self) -> None:
        if hasattr(self, "turns"):
            self.runner.run(self.compare())

    async def compare(self) -> None:
        for turn_id, outcome in self.expected.items():
            found = await self.turns.get("gateway", turn_id)
            said = found.failure.detail if found.failure else found.reply
            assert f"{found.state} {said}" == outcome
            assert found.attempt == self.attempts[turn_id]
        for queue in self.queues.values():
            found = [await self.turns.get("gateway", turn.id) for turn in queue]
            assert [turn.state for turn in found] == ["running", *["queued"] * len(queue)][: len(queue)]
            assert [turn.seq for turn in found] == sorted(turn.seq for turn in found)
            assert [turn.attempt for turn in found] == [self.attempts.get(turn.id, 0) for turn in found]

    def teardown(self) -> None:
        if hasattr(self, "turns"):
            self.runner.run(self.close())
        self.runner.close()
        shutil.rmtree(self.directory)


TestTurnsAgainstAModel = TurnsMachine.TestCase
TestTurnsAgainstAModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
