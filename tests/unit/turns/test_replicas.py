"""Two replicas on a real PostgreSQL server, which notice the changes of each other by announcements alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import psycopg
import pytest
from pydantic import Field
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ToolCallPart
from tests.unit.turns.conftest import OpenReplica as Open
from tests.unit.turns.conftest import Replica
from tests.waiting import PATIENCE

from torana.errors import AlreadyDecided, InvalidField, QueueFull, TakenOver
from torana.messages import Inbound, Turn
from torana.store.engine.database import Connection
from torana.store.engine.postgres.replicas import list_replicas
from torana.store.rows import shared_turns
from torana.store.rows.approval_questions import question_text
from torana.store.rows.approvals import Approval
from torana.store.rows.audit import Act
from torana.store.rows.extensions import mcp_pins
from torana.tools import ToolContext
from torana.turns import replicas as module
from torana.turns.approvals import Choice
from torana.turns.outcomes import cut_off
from torana.turns.queue import Queue

Message = Callable[..., Inbound]


async def soon(task: Awaitable[Turn]) -> Turn:
    async with asyncio.timeout(PATIENCE):
        return await task


async def open_asking_replica(open_replica: Open, *amounts: int) -> Replica:
    """Start a replica whose turn asks for approval of a call, or of a call for each of the ``amounts``."""

    def pay(amount: Annotated[int, Field(le=9)] = 5) -> str:
        """Pay."""
        return f"paid {amount}"

    tools = FunctionToolset[ToolContext]()
    tools.add_function(pay, metadata={"idempotent": False, "permission": "ask"})
    calls = [ToolCallPart("pay", {"amount": one}, tool_call_id=f"c{one}") for one in amounts]
    calls = calls or [ToolCallPart("pay", {}, tool_call_id="c1")]
    return await open_replica(calls, "I paid.", toolset=tools)


async def question(replica: Replica, turn: Turn, number: int = 1) -> str:
    """Wait until a turn has asked for this number of approvals, and return the id of the last one."""
    asked = 0
    async for event in replica.turns.reader.events(turn):
        asked += event.type == "approval.required"
        if asked == number:
            return event.data["id"]
    raise AssertionError("the turn has ended")


async def test_end_of_a_turn_is_announced(open_replica: Open, message: Message) -> None:
    gate = asyncio.Event()
    first, second = await open_replica([gate, "done"]), await open_replica()
    turn = await first.turns.accept(message())
    waiting = await second.wait_for_end(turn)

    gate.set()

    assert (await soon(waiting)).reply == "done"


async def test_stream_of_a_turn_that_another_replica_has_retried_omits_the_failed_attempt(
    open_replica: Open, message: Message
) -> None:
    failing = ["Half of an ", RuntimeError("the provider is down")]
    first, second = await open_replica(failing), await open_replica("The whole answer.")
    turn = await first.turns.accept(message())
    assert (await soon(first.turns.reader.wait_for_end(turn))).state == "failed"
    assert (await soon(second.turns.reader.wait_for_end(await second.turns.retry("gateway", turn.id)))).reply

    found = await first.turns.reader.get("gateway", turn.id)
    events = [event async for event in first.turns.reader.events(found)]

    assert [(event.type, event.data.get("text")) for event in events[1:]] == [
        ("message.snapshot", "The whole answer."),
        ("turn.completed", None),
    ]


async def test_cancellation_is_announced(open_replica: Open, message: Message) -> None:
    first, second = await open_replica([asyncio.Event()]), await open_replica()
    turn = await first.turns.accept(message())
    await first.until_asked()

    ended = await soon(second.turns.cancel("gateway", turn.id))

    assert ended.state == "cancelled"


async def test_decision_is_announced(
    open_replica: Open, message: Message, clock: Callable[[], datetime]
) -> None:
    first, second = await open_asking_replica(open_replica), await open_replica()
    turn = await first.turns.accept(message())
    await question(first, turn)
    waiting = await first.wait_for_end(turn)

    act = Act(principal="operator", source="test", at=clock())
    await second.turns.approvals.decide("gateway", turn.id, "c1", Choice(approve=True), act)

    assert (await soon(waiting)).reply == "I paid."


async def test_request_at_another_replica_receives_the_question(
    open_replica: Open, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECK", 0.1)  # a question is not announced; the next check finds it
    first, second = await open_asking_replica(open_replica), await open_replica()
    turn = await first.turns.accept(message())
    waiting = [asyncio.create_task(second.turns.open_approvals.wait_for_question(turn))]
    approval = await question(first, turn)
    waiting.append(asyncio.create_task(second.turns.open_approvals.wait_for_question(turn)))

    async with asyncio.timeout(PATIENCE):
        found = [await one for one in waiting]

    assert [one.approval.id for one in found] == [approval, approval]
    assert question_text("pay", {}) in found[0].text


async def test_yes_at_another_replica_receives_the_next_question(open_replica: Open, message: Message) -> None:
    first, second = await open_asking_replica(open_replica, 1, 2), await open_replica()
    turn = await first.turns.accept(message())
    await question(first, turn)
    async with asyncio.timeout(PATIENCE):
        await second.turns.open_approvals.wait_for_question(turn)
        await second.turns.accept(message("yes"))
        found = await second.turns.open_approvals.wait_for_question(turn)

    assert found.approval.arguments == {"amount": 2}


async def test_yes_on_two_replicas_at_the_same_time_answers_one_question(
    open_replica: Open, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await open_asking_replica(open_replica, 1, 2), await open_replica()
    turn = await first.turns.accept(message())
    await question(first, turn, 2)
    asked = question_text("pay", {"amount": 1})
    assert ((await first.turns.accept(message("yes"))).reply or "").endswith(asked)
    arrived, stored = asyncio.Event(), asyncio.Event()
    run = second.database.run

    async def run_later(work: Callable[[Connection], Any]) -> Any:
        arrived.set()
        await stored.wait()
        return await run(work)

    monkeypatch.setattr(second.database, "run", run_later)
    late = asyncio.create_task(second.turns.accept(message("yes")))
    await arrived.wait()

    decided = await first.turns.accept(message("yes"))
    stored.set()

    asked = question_text("pay", {"amount": 2})
    assert decided.reply == f"I run `pay`.\n\n{asked}"
    reply = (await soon(late)).reply or ""
    assert reply.startswith("That does not count")
    assert reply.endswith(asked)
    assert (await first.turns.accept(message("no"))).reply == "I do not run `pay`."
    assert (await soon(first.turns.reader.wait_for_end(turn))).reply == "I paid."


async def test_replica_that_runs_the_turn_checks_changed_arguments(
    open_replica: Open, message: Message, clock: Callable[[], datetime]
) -> None:
    first, second = await open_asking_replica(open_replica), await open_replica()
    turn = await first.turns.accept(message())
    await question(first, turn)
    waiting = await first.wait_for_end(turn)
    act = Act(principal="operator", source="test", at=clock())

    def approve(amount: int) -> Awaitable[Approval]:
        choice = Choice(approve=True, arguments={"amount": amount})
        return second.turns.approvals.decide("gateway", turn.id, "c1", choice, act)

    with pytest.raises(InvalidField) as refused:
        await approve(10)
    assert [fault.pointer for fault in refused.value.faults] == ["/arguments/amount"]
    assert (await approve(9)).edited == {"amount": 9}
    with pytest.raises(AlreadyDecided):
        await approve(8)

    assert (await soon(waiting)).reply == "I paid."
    assert "paid 9" in str(first.model.requests[-1].messages)


async def test_yes_to_a_question_that_another_replica_has_streamed_counts(
    open_replica: Open, message: Message
) -> None:
    first, second = await open_asking_replica(open_replica), await open_replica()
    turn = await first.turns.accept(message())
    waiting = await first.wait_for_end(turn)
    await first.turns.approvals.note_streamed(await question(first, turn))  # as an event stream does

    answered = await second.turns.accept(message("yes"))

    assert answered.reply == "I run `pay`."
    assert (await soon(waiting)).reply == "I paid."


async def test_limits_of_the_queue_hold_for_all_replicas_together(open_replica: Open, message: Message) -> None:
    first, second = await open_replica([asyncio.Event()]), await open_replica("done")
    for number in range(Queue().per_session):
        replica = (first, second)[number % 2]
        await replica.turns.accept(message(key=str(number)))

    with pytest.raises(QueueFull):
        await second.turns.accept(message())
    repeated = await second.turns.accept(message(key="0"))
    await second.turns.accept(message(channel="another"))

    assert repeated.seq == 1


async def test_message_that_interrupts_is_announced(open_replica: Open, message: Message) -> None:
    first, second = await open_replica([asyncio.Event()], "second"), await open_replica()
    turn = await first.turns.accept(message("first"))
    await first.until_asked()
    interrupted = await first.wait_for_end(turn)

    after = await second.turns.accept(message("second", on_busy="interrupt"))

    assert (await soon(interrupted)).state == "cancelled"
    assert (await soon(await second.wait_for_end(after))).reply == "second"


async def test_callers_of_a_stopping_replica_wait_for_turns_of_other_replicas(
    open_replica: Open, message: Message
) -> None:
    gate, other_gate = asyncio.Event(), asyncio.Event()
    first, second = await open_replica([gate, "own"]), await open_replica([other_gate, "other"], "queued")
    own = await first.turns.accept(message())
    await first.until_asked()
    queued = await first.turns.accept(message())
    other = await second.turns.accept(message(channel="other"))
    await second.until_asked()
    waiting = [await first.wait_for_end(turn) for turn in (own, queued, other)]

    stopping = asyncio.create_task(first.turns.stop(grace=PATIENCE))
    await asyncio.sleep(0)  # from now on the replica starts no turn
    gate.set()
    await second.until_asked(2)
    other_gate.set()
    await stopping

    assert [(await soon(one)).reply for one in waiting] == ["own", "queued", "other"]


async def test_turn_of_a_stopping_replica_is_announced(open_replica: Open, message: Message) -> None:
    first, second = await open_replica([asyncio.Event()]), await open_replica("done")
    turn = await first.turns.accept(message())
    await first.until_asked()

    await first.turns.stop(grace=0)

    await second.until_asked()
    assert (await soon(await second.wait_for_end(turn))).reply == "done"


async def test_lost_connection_of_the_listener_is_replaced(
    open_replica: Open,
    message: Message,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "_RECONNECT", 0)
    gate = asyncio.Event()
    first, second = await open_replica([gate, "done"]), await open_replica()
    turn = await first.turns.accept(message())
    waiting = await second.wait_for_end(turn)
    listeners = "pg_stat_activity WHERE application_name LIKE 'torana listener %'"
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        while (await (await connection.execute(f"SELECT count(*) FROM {listeners}".encode())).fetchone()) != (
            2,
        ):
            await second.look()
        await connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM {listeners}".encode())

    gate.set()

    assert (await soon(waiting)).reply == "done"
    assert "announcements_lost" in caplog.messages


async def test_announcements_do_not_hasten_a_takeover(open_replica: Open, postgres_url: str) -> None:
    replica = await open_replica()
    slow = "INSERT INTO replicas VALUES ('rep_slow', 'slow', '0', 0, now(), now() - interval '1 s')"
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute(slow.encode())

    for _ in range(5):
        await replica.turns.replicas.check()

    assert "rep_slow" in [one.id for one in await replica.database.run(list_replicas)]


async def test_turn_of_an_ended_replica_is_ended_and_taken_up_once(
    open_replica: Open, message: Message, postgres_url: str, clock: Callable[[], datetime]
) -> None:
    first, second, third = [await open_replica([asyncio.Event()]) for _ in range(3)]
    turn = await first.turns.accept(message())
    await first.until_asked()
    for replica in (first, second, third):
        await replica.turns.replicas.stop()  # a check would recover the turn

    def give(replica: str | None) -> None:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("ALTER TABLE turns DISABLE TRIGGER USER")  # the replicas must not notice it
            connection.execute("UPDATE turns SET replica = %s, cancel_requested = true", (replica,))
            connection.execute("ALTER TABLE turns ENABLE TRIGGER USER")  # other tests use the same tables

    give("rep_ended")
    (left,) = await second.database.run(shared_turns.list_interrupted)
    end = partial(shared_turns.end_left, turn=left, ending=cut_off(left, "", clock()))
    give(third.database.replica)
    assert await second.database.run(end) == []
    assert await second.database.run(partial(shared_turns.claim_left, session_id=turn.session_id)) is None
    give("rep_ended")
    assert [one.id for one in await second.database.run(end)] == [turn.id]
    assert await third.database.run(end) == []


async def test_events_of_an_isolated_turn_do_not_repeat_the_text_of_another_replica(
    open_replica: Open, message: Message, postgres_url: str
) -> None:
    first, second = await open_replica([asyncio.Event()]), await open_replica("4")
    turn = await first.turns.accept(message())
    await first.until_asked()
    waiting = await second.wait_for_end(turn)
    second.turns.live.log.append(turn.id, "message.delta", {"text": "4"})  # as over Redis
    for replica in (first, second):
        await replica.turns.replicas.stop()  # the first replica must not notice it
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE turns SET replica = 'rep_ended', crashes = 2")

    await second.turns.replicas.check()

    assert (await soon(waiting)).reply == "4"
    text = ""
    async for event in second.turns.reader.events(turn):
        match event.type:
            case "message.delta":
                text += event.data["text"]
            case "turn.resumed" | "message.snapshot":
                text = event.data["text"]
            case _:
                pass
    assert text == "4"


async def test_no_other_replica_runs_a_turn_that_is_to_run_alone(
    open_replica: Open, message: Message, postgres_url: str
) -> None:
    gone = await open_replica([asyncio.Event()])
    recovers, other = await open_replica(["alone"]), await open_replica(["beside others"])
    turn = await gone.turns.accept(message())
    await gone.until_asked()
    for one in (gone, recovers, other):
        await one.turns.replicas.stop()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE turns SET replica = 'rep_ended', crashes = 2 WHERE id = %s", (turn.id,))

    assert await recovers.database.run(shared_turns.recover)  # queued again, and not yet claimed
    await other.turns.replicas.check()
    states = await recovers.database.run(partial(shared_turns.claim_left, session_id=turn.session_id))
    assert states is not None
    await recovers.database.run(shared_turns.requeue)  # an orderly stop
    await other.turns.replicas.check()  # isolates it

    ended = await soon(await other.wait_for_end(turn))
    assert (ended.reply, ended.attempt) == ("beside others", 3)


async def test_replica_whose_lease_was_deleted_notices_it_at_its_next_check(
    open_replica: Open, postgres_url: str
) -> None:
    replica = await open_replica()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DELETE FROM replicas")

    with pytest.raises(TakenOver):
        await replica.turns.replicas.check()
    assert replica.turns.replicas.lost.is_set()


async def test_replica_whose_lease_was_deleted_notices_it_at_its_next_write(
    open_replica: Open, message: Message, postgres_url: str
) -> None:
    replica = await open_replica()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DELETE FROM replicas")

    with pytest.raises(TakenOver):
        await replica.turns.accept(message())
    assert replica.turns.replicas.lost.is_set()


async def test_check_notices_tools_that_another_replica_has_accepted(open_replica: Open) -> None:
    first, second = await open_replica(), await open_replica()
    watch = second.turns.replicas
    await watch.check()
    watch.accepted_tools.clear()
    await watch.check()
    assert not watch.accepted_tools.is_set()

    key = mcp_pins.PinsKey("shop", "a digest")
    await first.database.run(partial(mcp_pins.accept, key=key, digests={"buy": "1"}))
    await watch.check()

    assert watch.accepted_tools.is_set()
