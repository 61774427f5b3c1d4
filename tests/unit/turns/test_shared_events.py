"""Two replicas whose events a real Redis server carries."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart
from tests.redis_server import RedisProcess
from tests.unit.turns.conftest import OpenReplica, Replica
from tests.waiting import PATIENCE

from torana.messages import Inbound, Turn, TurnEvent
from torana.store.redis.server import RedisServer
from torana.turns.events import publishing, worker
from torana.turns.events.entries import key_of
from torana.turns.events.log import EventLog
from torana.turns.events.sharing import RedisEventSharing

Message = Callable[..., Inbound]
Look = Callable[[], Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once while Redis fails."""
    monkeypatch.setattr(worker, "_RETRY", 0.01)


class Side:
    """The log and the sharing of one replica."""

    def __init__(self, url: str) -> None:
        self.log = EventLog()
        self.server = RedisServer(url)
        self.sharing = RedisEventSharing(server=self.server, log=self.log)

    def begin(self, turn_id: str, *, attempt: int = 1, settled: str = "") -> None:
        """Begin an attempt as a replica does that runs the turn."""
        self.watch(turn_id, attempt=attempt, settled=settled)
        self.sharing.begin(turn_id)

    def watch(self, turn_id: str, *, attempt: int = 1, settled: str = "") -> None:
        """Open an attempt as a replica does that waits for the turn."""
        self.log.open(turn_id, attempt=attempt)
        if attempt == 1:
            self.log.append(turn_id, "turn.accepted", {"id": turn_id, "channelId": "c"})
        else:
            self.log.append(turn_id, "turn.resumed", {"attempt": attempt, "text": settled})

    def say(self, turn_id: str, text: str) -> None:
        self.log.append(turn_id, "message.delta", {"text": text})
        self.sharing.publish(turn_id, "message.delta", {"text": text})

    async def until_text(self, turn_id: str, text: str) -> None:
        await until(lambda: self.log.text(turn_id) == text)


async def until(look: Look) -> None:
    """Wait until ``look`` returns a true value."""
    async with asyncio.timeout(PATIENCE):
        while not look():  # noqa: ASYNC110 - the log sends no notification
            await asyncio.sleep(0.002)


@pytest.fixture
async def open_side(redis: RedisProcess) -> AsyncGenerator[Callable[..., Side]]:
    """``open_side()`` starts the sharing of a replica."""
    opened: list[Side] = []

    def begin(url: str = redis.url) -> Side:
        opened.append(Side(url))
        opened[-1].sharing.start()
        return opened[-1]

    yield begin
    for side in opened:
        await side.sharing.stop()


Open = Callable[..., Side]


async def test_deltas_reach_another_replica_in_order(open_side: Open) -> None:
    runs, follows = open_side(), open_side()
    runs.begin("t")
    follows.watch("t")
    follows.sharing.follow("t")
    said = ""
    for number in range(300):
        runs.say("t", f"{number} ")
        said += f"{number} "
        await asyncio.sleep(0)

    await follows.until_text("t", said)


async def test_follower_that_comes_late_has_the_whole_text(open_side: Open, redis: RedisProcess) -> None:
    runs, follows = open_side(), open_side()
    runs.begin("t")
    for number, text in enumerate(("a", "b", "c"), start=1):
        runs.say("t", text)
        await until(lambda number=number: redis.execute("XLEN", key_of("t")) == number)
    follows.watch("t")
    follows.sharing.follow("t")

    await follows.until_text("t", "abc")


async def test_half_a_surrogate_pair_is_carried(open_side: Open) -> None:
    runs, follows = open_side(), open_side()
    runs.begin("t")
    follows.watch("t")
    follows.sharing.follow("t")
    runs.say("t", "\ud83d")
    await follows.until_text("t", "\ud83d")
    runs.say("t", "\ude00")

    await follows.until_text("t", "\ud83d\ude00")


async def test_next_attempt_replaces_the_text(open_side: Open) -> None:
    first, second, follows = open_side(), open_side(), open_side()
    first.begin("t")
    first.say("t", "lost")
    follows.watch("t")
    follows.sharing.follow("t")
    await follows.until_text("t", "lost")

    second.begin("t", attempt=2, settled="kept, ")
    second.say("t", "continued")

    await follows.until_text("t", "kept, continued")
    assert follows.log.attempt("t") == 2


async def test_replica_adds_nothing_to_a_turn_that_another_continues(
    open_side: Open, redis: RedisProcess
) -> None:
    first, second, follows = open_side(), open_side(), open_side()
    first.begin("t")
    first.say("t", "a")
    await until(lambda: redis.execute("XLEN", key_of("t")) == 1)
    second.begin("t", attempt=2, settled="")
    await until(lambda: redis.execute("XLEN", key_of("t")) == 2)

    first.say("t", "late")
    await until(lambda: not first.sharing._publisher._streams)  # pyright: ignore[reportPrivateUsage]
    follows.watch("t")
    follows.sharing.follow("t")
    second.say("t", "b")

    await follows.until_text("t", "b")
    assert first.server.works


async def test_events_that_wait_for_redis_are_bounded_and_become_a_snapshot(
    open_side: Open, redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    runs, follows = open_side(), open_side()
    runs.begin("t")
    follows.watch("t")
    follows.sharing.follow("t")
    runs.say("t", "before ")
    await follows.until_text("t", "before ")
    redis.kill()
    await until(lambda: not runs.server.works)
    for _ in range(1_000):
        runs.say("t", "x" * 1_000)
    (stream,) = runs.sharing._publisher._streams.values()  # pyright: ignore[reportPrivateUsage]
    assert stream.size < 100_000

    redis.start()

    await follows.until_text("t", "before " + "x" * 1_000_000)
    runs.say("t", " after")
    await follows.until_text("t", "before " + "x" * 1_000_000 + " after")
    await until(lambda: caplog.messages.count("redis_restored") == 2)
    assert caplog.messages.count("redis_lost") == 2  # once for each replica


async def test_flush_loses_nothing_of_a_followed_turn(open_side: Open, redis: RedisProcess) -> None:
    runs, follows, late = open_side(), open_side(), open_side()
    runs.begin("t")
    for side in (follows, late):
        side.watch("t")
    follows.sharing.follow("t")
    runs.say("t", "a")
    await follows.until_text("t", "a")

    redis.execute("FLUSHALL")
    late.sharing.follow("t")
    runs.say("t", "b")

    await follows.until_text("t", "ab")
    await late.until_text("t", "ab")


@pytest.mark.parametrize(
    ("harm", "cure"),
    [
        (["CONFIG", "SET", "min-replicas-to-write", "1"], ["CONFIG", "SET", "min-replicas-to-write", "0"]),
        (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]),
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (["ACL", "SETUSER", "default", "-eval"], ["ACL", "SETUSER", "default", "+eval"]),
    ],
    ids=["too few replicas", "read-only", "out of memory", "without the right"],
)
async def test_server_that_refuses_writes_is_noticed_once_and_used_again(
    open_side: Open,
    redis: RedisProcess,
    caplog: pytest.LogCaptureFixture,
    harm: Sequence[str],
    cure: Sequence[str],
) -> None:
    runs, follows = open_side(), open_side()
    runs.begin("t")
    follows.watch("t")
    follows.sharing.follow("t")
    runs.say("t", "a")
    await follows.until_text("t", "a")
    redis.execute(*harm)
    runs.say("t", "b")
    await until(lambda: not runs.server.works)
    lost = [one for one in caplog.records if one.message == "redis_lost"]

    redis.execute(*cure)

    await follows.until_text("t", "ab")
    assert lost[0].__dict__["purpose"] == "publish"
    assert lost[0].__dict__["reason"]


async def test_frozen_server_delays_no_turn(open_side: Open, redis: RedisProcess) -> None:
    runs, follows = open_side(), open_side()
    runs.begin("t")
    follows.watch("t")
    follows.sharing.follow("t")
    runs.say("t", "a")
    await follows.until_text("t", "a")
    redis.signal(signal.SIGSTOP)
    runs.say("t", "b")
    await until(lambda: not runs.server.works)
    redis.signal(signal.SIGCONT)

    await follows.until_text("t", "ab")


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1/0", "redis://ana:wrong-password@127.0.0.1:{port}/0", "redis://no.invalid:6379"]
)
async def test_unusable_server_is_logged_at_the_start_without_the_password(
    open_side: Open, redis: RedisProcess, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    side = open_side(url.format(port=redis.port))

    await until(lambda: "redis_lost" in caplog.messages)
    assert "wrong-password" not in "".join(str(one.__dict__) for one in caplog.records)
    assert not side.server.works


async def test_ended_turn_leaves_no_key_and_others_expire(open_side: Open, redis: RedisProcess) -> None:
    runs = open_side()
    for turn_id in ("t", "left"):
        runs.begin(turn_id)
        runs.say(turn_id, "secret")
    await until(lambda: redis.execute("XLEN", key_of("t")))
    assert 0 < redis.execute("TTL", key_of("t")) <= 3_600

    runs.sharing.end("t", elsewhere=False)
    await until(lambda: not redis.execute("EXISTS", key_of("t")))
    open_side().sharing.delete("left")  # as an erasure at any replica does

    await until(lambda: not redis.execute("EXISTS", key_of("left")))


async def test_stream_of_a_long_reply_is_bounded(
    open_side: Open, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_COLLECT", 0)
    monkeypatch.setattr(publishing, "_SNAPSHOT_ENTRIES", 20)
    runs, follows, late = open_side(), open_side(), open_side()
    runs.begin("t")
    for side in (follows, late):
        side.watch("t")
    follows.sharing.follow("t")
    said = ""
    for number in range(200):
        runs.say("t", f"{number} ")
        said += f"{number} "
        await follows.until_text("t", said)
    late.sharing.follow("t")

    await late.until_text("t", said)
    assert redis.execute("XLEN", key_of("t")) <= 21


@pytest.mark.parametrize(
    "entry",
    [
        "no-id []",
        "9-1",
        "9-1 no JSON",
        '9-1 {"a": 1}',
        "9-1 [1]",
        '9-1 [["message.delta", {"text": 1}]]',
        '9-1 [[["x"], {}]]',
        '1-2 [["turn.completed", {}], ["of.tomorrow", {}]]',
    ],
)
async def test_foreign_messages_are_ignored(open_side: Open, redis: RedisProcess, entry: str) -> None:
    runs, follows = open_side(), open_side()
    runs.begin("t")
    follows.watch("t")
    follows.sharing.follow("t")
    runs.say("t", "a")
    await follows.until_text("t", "a")

    redis.execute("PUBLISH", key_of("t"), entry)
    redis.execute("PUBLISH", "torana:idle", entry)
    runs.say("t", "b")
    await until(lambda: redis.execute("XLEN", key_of("t")) == 2)
    runs.say("t", "c")

    await until(lambda: follows.log.text("t").endswith("c"))
    assert follows.log.attempt("t") == 1


@pytest.mark.parametrize(
    ("id_", "document"),
    [
        pytest.param("1-500", "[" * 100_000, id="deep"),
        pytest.param("1-500", '[[["x"], {}]]', id="type of an event"),
        pytest.param("1-500", '[["approval.required", {}]]', id="approval without an id"),
        pytest.param(
            "1-500", "[" + ",".join(['["message.snapshot",{"text":"x"}]'] * 20_000) + "]", id="many values"
        ),
        pytest.param("18446744073709551615-1", "[]", id="highest attempt"),
    ],
)
async def test_foreign_entry_does_not_disturb_other_turns(
    open_side: Open, redis: RedisProcess, caplog: pytest.LogCaptureFixture, id_: str, document: str
) -> None:
    runs, follows = open_side(), open_side()
    redis.execute("XADD", key_of("poisoned"), id_, "events", document)
    for turn in ("poisoned", "t"):
        follows.watch(turn)
        follows.sharing.follow(turn)
        runs.begin(turn)
    redis.execute("PUBLISH", key_of("poisoned"), f"{id_} {document}")
    redis.execute("CLIENT", "KILL", "TYPE", "pubsub")
    runs.say("t", "a")

    await follows.until_text("t", "a")
    follows.log.append("poisoned", "turn.completed", {})
    events = [event.type async for event in follows.log.follow("poisoned")]
    assert events == ["turn.accepted", "turn.completed"]
    assert "events_not_shared" not in caplog.messages


async def test_key_of_another_type_does_not_disturb_other_turns(open_side: Open, redis: RedisProcess) -> None:
    redis.execute("SET", key_of("poisoned"), "x")
    runs, follows = open_side(), open_side()
    for turn in ("poisoned", "t"):
        follows.watch(turn)
        follows.sharing.follow(turn)
        runs.begin(turn)
        runs.say(turn, "a")

    await follows.until_text("t", "a")
    runs.say("t", "b")
    await follows.until_text("t", "ab")
    assert runs.server.works


# The same with turns on PostgreSQL.


async def read_all(replica: Replica, turn: Turn, events: list[TurnEvent]) -> list[TurnEvent]:
    """Add all events of a turn to ``events``, and return them."""
    async for event in replica.turns.reader.events(turn):
        events.append(event)
    return events


async def soon(task: Awaitable[list[TurnEvent]]) -> list[TurnEvent]:
    async with asyncio.timeout(PATIENCE):
        return await task


def shown_text(events: Sequence[TurnEvent]) -> str:
    """Return the text of an event stream at its end."""
    text = ""
    for event in events:
        if event.type == "message.delta":
            text += event.data["text"]
        elif event.type in ("message.snapshot", "turn.resumed"):
            text = event.data["text"]
    return text


async def test_stream_at_another_replica_has_the_deltas_and_the_tools(
    open_replica: OpenReplica, redis: RedisProcess, message: Message
) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    script = [gates[0], "one ", gates[1], "two ", ToolCallPart("calculate", {"expression": "6 * 7"})]
    first = await open_replica(script, [gates[2], "three"], redis=redis.url)
    second = await open_replica(redis=redis.url)
    turn = await first.turns.accept(message())
    events: list[TurnEvent] = []

    reading = asyncio.ensure_future(read_all(second, turn, events))
    for gate, text in zip(gates, ("one ", "one two ", "three"), strict=True):
        gate.set()
        await until(lambda text=text: shown_text(events).endswith(text))

    await soon(reading)
    kinds = [event.type for event in events]
    assert kinds.count("turn.accepted") == kinds.count("turn.completed") == 1
    assert "tool.started" in kinds
    assert "tool.finished" in kinds
    assert "message.snapshot" not in kinds
    ended = await second.turns.reader.get("gateway", turn.id)
    assert shown_text(events) == ended.reply
    await until(lambda: not redis.execute("DBSIZE") or redis.execute("KEYS", "torana:turn:*") == [])


async def test_turn_ends_and_its_stream_is_whole_if_redis_is_killed_meanwhile(
    open_replica: OpenReplica, redis: RedisProcess, message: Message
) -> None:
    gates = [asyncio.Event() for _ in range(2)]
    first = await open_replica([gates[0], "one ", gates[1], "two"], redis=redis.url)
    second = await open_replica(redis=redis.url)
    turn = await first.turns.accept(message())
    events: list[TurnEvent] = []

    reading = asyncio.ensure_future(read_all(second, turn, events))
    gates[0].set()
    await until(lambda: shown_text(events) == "one ")

    redis.kill()
    gates[1].set()

    await soon(reading)
    assert shown_text(events) == "one two"
    assert events[-1].type == "turn.completed"


async def test_turn_that_moves_to_the_followers_replica_is_streamed_from_there(
    open_replica: OpenReplica, redis: RedisProcess, message: Message
) -> None:
    gate = asyncio.Event()
    first = await open_replica(["lost", asyncio.Event()], redis=redis.url)
    second = await open_replica([gate, "whole"], redis=redis.url)
    turn = await first.turns.accept(message())
    reading = asyncio.ensure_future(read_all(second, turn, []))
    await until(lambda: second.turns.live.log.text(turn.id) == "lost")

    await first.turns.stop(grace=0)
    gate.set()

    assert shown_text(await soon(reading)) == "whole"
