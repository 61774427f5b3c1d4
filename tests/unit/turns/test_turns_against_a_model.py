"""Turns on a real store are compared with a simple model: sessions are queues, and restarts lose nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.assembling import turns_over

from torana.agent import Answer, Emit
from torana.agent.journal import Journal
from torana.errors import ModelFailed, SessionBusy
from torana.messages import Inbound, OnBusy, Turn
from torana.store.engine.migrate import migrate
from torana.store.engine.sqlite import SqliteDatabase

CHANNELS = ("a", "b", "c")
SPEAKERS = (("ana", None), ("ana", "tok_1"), ("bob", None))
MAX_CRASHES = 2
NOTHING = Inbound(owner="nobody", principal="local", content="nothing", key="none")


def speaker_of(said: Turn | Inbound) -> tuple[str | None, str | None]:
    return said.user, said.token


class OnCommand:
    """An agent that answers a turn on command."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Future[str]] = {}
        self.journals: dict[str, Journal] = {}

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        self.asked[turn.id] = asyncio.get_running_loop().create_future()
        self.journals[turn.id] = journal
        try:
            text = await self.asked[turn.id]
        finally:
            del self.asked[turn.id]
        emit("message.delta", {"text": text})
        return Answer(reply=text, model="m", history=(b"[]", 1))


@dataclass(eq=False)
class Entry:
    """A turn in the model."""

    turn: Turn
    seq: int
    on_busy: OnBusy
    state: str = "queued"
    outcome: str = ""
    attempt: int = 0
    crashes: int = 0
    merged_into: Entry | None = None
    #: Steering messages that the turn has taken, and those of them sent in this attempt.
    taken: list[Entry] = field(default_factory=list["Entry"])
    shown: set[str] = field(default_factory=set[str])
    steps: int = 0

    @property
    def live(self) -> bool:
        return self.state in ("queued", "running")


class Model:
    """The promised behaviour of turns in its simplest form."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: The channels whose first turn is still to run alone, and the turn that runs alone.
        self.suspected: list[str] = []
        self.alone: Entry | None = None

    def live(self, channel: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.live and entry.turn.channel == channel]

    def running(self, channel: str) -> Entry | None:
        return next((entry for entry in self.live(channel) if entry.state == "running"), None)

    def all_running(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state == "running"]

    def end(self, entry: Entry, state: str, outcome: str) -> None:
        was_running = entry.state == "running"
        for ended in (entry, *entry.taken):
            ended.state, ended.outcome = state, outcome
        if was_running:
            for other in self.live(entry.turn.channel):
                if other.on_busy == "steer" and other.merged_into is None:
                    other.on_busy = "queue"
        self.advance()

    def advance(self) -> None:
        """Start the turns that are due."""
        if self.alone is not None and self.alone.state == "running":
            return
        self.alone = None
        while self.suspected and self.alone is None:
            channel = self.suspected.pop(0)
            self.start(channel)
            self.alone = self.running(channel)
        for channel in CHANNELS if self.alone is None else ():
            if self.running(channel) is None:
                self.start(channel)

    def start(self, channel: str) -> None:
        waiting = [entry for entry in self.live(channel) if entry.merged_into is None]
        if not waiting:
            return
        entry = min(waiting, key=lambda entry: (entry.on_busy != "interrupt", entry.seq))
        entry.state = "running"
        entry.attempt += 1
        entry.shown, entry.steps = set(), 0


class TurnsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.model = Model()
        self.seqs = {channel: count(1) for channel in CHANNELS}

    @initialize()
    def begin(self) -> None:
        migrate(self.directory / "torana.db")
        self.runner.run(self.open())

    async def open(self) -> None:
        self.agent = OnCommand()
        self.database = SqliteDatabase(path=self.directory / "torana.db")
        self.turns = turns_over(self.database, self.agent, max_crashes=MAX_CRASHES)
        await self.turns.start()
        await self.settle()

    async def settle(self) -> None:
        """Wait until exactly the running turns have reached the agent."""
        expected = {entry.turn.id for entry in self.model.all_running()}
        for _ in range(500):  # database reads; three would be enough
            if set(self.agent.asked) == expected:
                return
            await self.turns.reader.find_by_key(NOTHING)
        assert set(self.agent.asked) == expected

    @rule(
        channel=strategies.sampled_from(CHANNELS),
        speaker=strategies.sampled_from(SPEAKERS),
        on_busy=strategies.sampled_from(["queue", "queue", "steer", "interrupt", "reject"]),
    )
    def accept(self, channel: str, speaker: tuple[str, str | None], on_busy: OnBusy) -> None:
        user, token = speaker
        inbound = Inbound(
            owner="gateway",
            principal="local",
            content="hi",
            channel=channel,
            user=user,
            token=token,
            on_busy=on_busy,
        )
        self.runner.run(self.accept_it(inbound, channel))

    async def accept_it(self, inbound: Inbound, channel: str) -> None:
        others = self.model.live(channel)
        if others and inbound.on_busy == "reject":
            try:
                await self.turns.accept(inbound)
            except SessionBusy:
                return
            raise AssertionError("it was not rejected")
        running = self.model.running(channel)
        own = running if running and speaker_of(running.turn) == speaker_of(inbound) else None
        turn = await self.turns.accept(inbound)
        on_busy = inbound.on_busy if own else "queue"
        entry = Entry(turn=turn, seq=next(self.seqs[channel]), on_busy=on_busy)
        self.model.entries.append(entry)
        assert turn.state == ("queued" if others or self.model.alone else "running")
        if own and on_busy == "interrupt":
            await self.turns.reader.wait_for_end(own.turn)
            self.model.end(own, "cancelled", "turn_cancelled")
        elif not others and self.model.alone is None:
            self.model.advance()
        await self.settle()

    @precondition(lambda self: self.model.all_running())
    @rule(data=strategies.data(), text=strategies.text(max_size=20), fails=strategies.booleans())
    def end(self, data: strategies.DataObject, text: str, fails: bool) -> None:
        entry = data.draw(strategies.sampled_from(self.model.all_running()))
        self.runner.run(self.end_it(entry, text, fails))

    async def end_it(self, entry: Entry, text: str, fails: bool) -> None:
        answered = self.agent.asked[entry.turn.id]
        if fails:
            answered.set_exception(ModelFailed())
        else:
            answered.set_result(text)
        ended = await self.turns.reader.wait_for_end(entry.turn)
        assert [event.id async for event in self.turns.reader.events(ended)][-1].startswith(f"{ended.attempt}-")
        self.model.end(entry, *(("failed", "model_failed") if fails else ("completed", text)))
        await self.settle()

    @precondition(lambda self: self.model.entries)
    @rule(data=strategies.data())
    def cancel(self, data: strategies.DataObject) -> None:
        entry = data.draw(strategies.sampled_from(self.model.entries))
        self.runner.run(self.cancel_it(entry))

    async def cancel_it(self, entry: Entry) -> None:
        ended = await self.turns.cancel("gateway", entry.turn.id)
        if entry.live:
            assert ended.state == "cancelled"
            self.model.end(entry.merged_into or entry, "cancelled", "turn_cancelled")
        assert ended.state == entry.state
        await self.settle()

    @precondition(lambda self: any(entry.state == "failed" for entry in self.model.entries))
    @rule(data=strategies.data())
    def retry(self, data: strategies.DataObject) -> None:
        failed = [entry for entry in self.model.entries if entry.state == "failed"]
        self.runner.run(self.retry_it(data.draw(strategies.sampled_from(failed))))

    async def retry_it(self, entry: Entry) -> None:
        idle = not self.model.live(entry.turn.channel)
        await self.turns.retry("gateway", entry.turn.id)
        entry.state, entry.on_busy, entry.crashes, entry.merged_into = "queued", "queue", 0, None
        entry.taken = []
        # Even if a turn failed before its first attempt, merged into another, its retry is not attempt 1.
        entry.attempt = max(entry.attempt, 1)
        entry.seq = next(self.seqs[entry.turn.channel])
        if idle and self.model.alone is None:
            self.model.advance()
        await self.settle()

    @precondition(lambda self: self.model.all_running())
    @rule(data=strategies.data())
    def take_steers(self, data: strategies.DataObject) -> None:
        entry = data.draw(strategies.sampled_from(self.model.all_running()))
        self.runner.run(self.take_them(entry))

    async def take_them(self, entry: Entry) -> None:
        heard = await self.agent.journals[entry.turn.id].steers(entry.steps)
        entry.steps += 1
        for other in self.model.live(entry.turn.channel):
            is_own = speaker_of(other.turn) == speaker_of(entry.turn)
            if is_own and other.on_busy == "steer" and other.state == "queued" and other.merged_into is None:
                other.merged_into = entry
                entry.taken.append(other)
        new = [other for other in entry.taken if other.turn.id not in entry.shown]
        entry.shown |= {other.turn.id for other in new}
        assert len(heard) == len(new)

    @rule()
    def drain(self) -> None:
        self.runner.run(self.again(dies=False))

    @rule()
    def crash(self) -> None:
        self.runner.run(self.again(dies=True))

    async def again(self, *, dies: bool) -> None:
        if dies:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        else:
            await self.turns.stop(grace=0)
        self.database.close()
        for entry in self.model.all_running():
            entry.state = "queued"
            entry.crashes += dies
            if entry.crashes == 2 + MAX_CRASHES:
                for ended in (entry, *entry.taken):
                    ended.state, ended.outcome = "failed", "crashed_repeatedly"
        suspects = [entry for entry in self.model.entries if entry.live and entry.crashes >= 2]
        suspects.sort(key=lambda entry: entry.turn.session_id)
        self.model.alone = None
        self.model.suspected = list(dict.fromkeys(entry.turn.channel for entry in suspects))
        self.model.advance()
        await self.open()

    @invariant()
    def the_database_says_what_the_model_says(self) -> None:
        if hasattr(self, "turns"):
            self.runner.run(self.compare())

    async def compare(self) -> None:
        for entry in self.model.entries:
            found = await self.turns.reader.get("gateway", entry.turn.id)
            outcome = found.failure.code if found.failure else found.reply or ""
            assert (found.state, outcome if found.has_ended else "") == (
                entry.state,
                entry.outcome if found.has_ended else "",
            )
            assert (found.attempt, found.seq, found.crashes) == (entry.attempt, entry.seq, entry.crashes)
            assert found.merged_into == (entry.merged_into and entry.merged_into.turn.id)

    def teardown(self) -> None:
        if hasattr(self, "turns"):
            self.runner.run(self.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    async def close(self) -> None:
        await self.turns.stop(grace=0)
        self.database.close()


TestTurnsAgainstAModel = TurnsMachine.TestCase
TestTurnsAgainstAModel.settings = settings(max_examples=settings().max_examples // 4, stateful_step_count=25)
