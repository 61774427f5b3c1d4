"""Tool calls that need an approval wait for it, also across crashes, and never run without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart

from torana.errors import AlreadyDecided, ApprovalChanged, InvalidField, NotFound, NotWaiting
from torana.messages import SCHEDULE_PRINCIPAL, Inbound, Turn
from torana.models.builtin.answers import failure_for_people
from torana.store.engine import tables
from torana.store.engine.database import Connection, Database
from torana.store.rows import approvals as rows
from torana.store.rows import audit
from torana.store.rows.approval_questions import call_digest, question_text
from torana.store.rows.approvals import Approval, ApprovalVerdict
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.turns.approvals import Approvals, Choice

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]

BEGIN = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


class Watch:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Desk:
    """Tools that need an approval, and a record of the calls that ran."""

    done: list[str] = field(default_factory=list[str])
    gates: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    async def pay(self, amount: int, to: str = "ana") -> str:
        """Pay; a second call pays again."""
        self.done.append(f"{amount} to {to}")
        if gate := self.gates.get(to):
            await gate.wait()
        return f"paid {amount}"

    async def note(self, line: str) -> str:
        """Write a line."""
        self.done.append(line)
        if gate := self.gates.get(line):
            await gate.wait()
        return "noted"

    def toolset(self) -> FunctionToolset[ToolContext]:
        tools = FunctionToolset[ToolContext]()
        tools.add_function(self.pay, metadata={"idempotent": False, "permission": "ask"})
        tools.add_function(self.note, metadata={"idempotent": False, "permission": "allow"})
        return tools


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def watch() -> Watch:
    return Watch()


def pay(amount: object = 5, *, to: str = "ana", id_: str = "c1") -> ToolCallPart:
    return ToolCallPart("pay", {"amount": amount, "to": to}, tool_call_id=id_)


YES = Choice(approve=True)
NO = Choice(approve=False)


async def decide(
    gateway: Any,
    turn: Turn,
    choice: Choice,
    call_id: str = "c1",
    owner: str = "gateway",
    by: str = "operator",
) -> Any:
    act = Act(principal=by, source="test", at=BEGIN)
    return await gateway.turns.approvals.decide(owner, turn.id, call_id, choice, act)


async def wait_for_requests(gateway: Any, turn: Turn, times: int = 1) -> list[dict[str, Any]]:
    """Wait until the turn has asked for this number of approvals in this attempt, and return the requests."""
    found: list[dict[str, Any]] = []
    async for event in gateway.turns.reader.events(turn):
        if event.type == "approval.required":
            found.append(dict(event.data))
            await gateway.turns.approvals.note_streamed(event.data["id"])  # as an event stream does
        if len(found) == times:
            return found
    raise AssertionError(f"it ended, and asked {len(found)} times")


async def crash_while_asking(boot: Boot, desk: Desk, message: Message) -> Turn:
    """Run a turn until it asks for approval, and crash the gateway there."""
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    await gateway.crash()
    return turn


def returned(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    parts = [part for message in messages for part in message.parts]
    return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}


async def states(gateway: Any) -> list[str]:
    def read(connection: sa.Connection) -> list[str]:
        return list(connection.execute(sa.select(tables.approvals.c.state)).scalars())

    return await gateway.database.run(read)


async def next_question(gateway: Any) -> list[tuple[str, str]]:
    """Return the state and text of each delivery, in order."""
    query = sa.select(tables.deliveries.c.state, tables.deliveries.c.text)

    def read(connection: Connection) -> list[tuple[str, str]]:
        return [tuple(row) for row in connection.execute(query.order_by(tables.deliveries.c.number))]

    return await gateway.database.run(read)


async def state_of(gateway: Any, turn: Turn) -> str:
    return (await gateway.turns.reader.get("gateway", turn.id)).state


async def test_call_waits_for_approval_and_then_runs(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel(["I pay. ", pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())

    (question,) = await wait_for_requests(gateway, turn)

    assert question["callId"] == "c1"
    assert (question["tool"], question["arguments"]) == ("pay", {"amount": 5, "to": "ana"})
    assert datetime.fromisoformat(question["expiresAt"]) > BEGIN
    assert (desk.done, await state_of(gateway, turn)) == ([], "waiting")
    assert [one.call_id for one in await gateway.turns.approvals.open_of("gateway", turn.id)] == ["c1"]
    assert gateway.turns.live.counts() == {"running": 0, "waiting": 1, "queued": 0}
    await decide(gateway, turn, YES)
    ended = await gateway.turns.reader.wait_for_end(turn)
    assert (desk.done, ended.reply, ended.state) == (["5 to ana"], "I pay. \n\nDone.", "completed")
    assert returned(gateway.model.requests[1].messages) == {"c1": "paid 5"}
    assert await gateway.turns.approvals.open_of("gateway", turn.id) == []


async def test_denial_and_its_reason_reach_the_model(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "I did not."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)

    await decide(gateway, turn, replace(NO, reason="too much"))
    await gateway.turns.reader.wait_for_end(turn)

    assert desk.done == []
    told = returned(gateway.model.requests[1].messages)["c1"]
    why = "pay was not run: it was denied, with the reason: too much."
    assert told.startswith(why)
    assert failure_for_people(told) == why


async def test_approval_may_change_arguments_and_the_model_sees_them(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(500)], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)

    for wrong, pointer in (
        ({"amount": "much"}, "/arguments/amount"),
        ({"to": "bob"}, "/arguments/amount"),
        ({"amount": 5, "tip": 1}, "/arguments/tip"),
    ):
        with pytest.raises(InvalidField) as caught:
            await decide(gateway, turn, replace(YES, arguments=wrong))
        assert [fault.pointer for fault in caught.value.faults] == [pointer]
    assert await state_of(gateway, turn) == "waiting"
    await decide(gateway, turn, replace(YES, arguments={"amount": 50, "to": "bob"}))
    await gateway.turns.reader.wait_for_end(turn)

    assert desk.done == ["50 to bob"]
    told = returned(gateway.model.requests[1].messages)["c1"]
    assert (told["arguments"], told["result"]) == ({"amount": 50, "to": "bob"}, "paid 50")


async def test_approval_survives_crashes_and_is_requested_once(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel(["I pay. ", pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    (first,) = await wait_for_requests(gateway, turn)
    for _ in range(
        7
    ):  # more often than a turn may crash the gateway: an open approval does not count as a crash
        await gateway.crash()
        gateway = await boot(ScriptedModel("Done."), desk.toolset())
        assert await wait_for_requests(gateway, turn) == [first]
        assert (await state_of(gateway, turn), await states(gateway)) == ("waiting", ["open"])
        assert gateway.model.requests == []

    await decide(gateway, turn, YES)
    ended = await gateway.turns.reader.wait_for_end(turn)

    assert (desk.done, ended.reply, ended.attempt, ended.crashes) == (["5 to ana"], "I pay. \n\nDone.", 8, 0)


@pytest.mark.parametrize(
    ("choice", "done"),
    [(YES, ["5 to ana"]), (NO, []), (replace(YES, arguments={"amount": 7}), ["7 to ana"])],
)
async def test_decision_before_a_crash_holds_after_it(
    boot: Boot, desk: Desk, message: Message, choice: Choice, done: list[str]
) -> None:
    """The process crashes immediately after the decision is committed."""
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    gateway.turns.approvals.decided = id  # the waiting turn is not notified
    await decide(gateway, turn, choice)
    await gateway.crash()

    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    await gateway.turns.reader.wait_for_end(turn)

    assert desk.done == done
    types = [event.type for event in await gateway.watch(turn)]
    assert "approval.required" not in types


async def test_approved_call_cut_off_by_a_crash_is_not_restarted(
    boot: Boot, desk: Desk, message: Message
) -> None:
    desk.gates["ana"] = asyncio.Event()
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    await decide(gateway, turn, YES)
    while not desk.done:
        await gateway.look()
    await gateway.crash()

    gateway = await boot(ScriptedModel("Who knows."), desk.toolset())
    ended = await gateway.turns.reader.wait_for_end(turn)

    assert (desk.done, ended.reply) == (["5 to ana"], "Who knows.")
    assert "outcome is unknown" in returned(gateway.model.requests[0].messages)["c1"]


async def test_answer_to_replaced_arguments_is_dropped(
    boot: Boot, desk: Desk, message: Message, open_database: Callable[[], Database]
) -> None:
    turn = await crash_while_asking(boot, desk, message)
    first, second = rows.Proposal("p1", {"amount": 1}), rows.Proposal("p2", {"amount": 2})

    def propose(connection: Connection) -> rows.Proposal | None:
        (approval,) = rows.of_turn(connection, turn.id)
        rows.propose(connection, approval, first)
        rows.propose(connection, approval, second)
        rows.answer_proposal(connection, approval, first, rows.CheckAnswer(first.id, None, []))
        return rows.unchecked_proposal(connection, approval)

    database = open_database()
    assert await database.run(propose) == second
    database.close()


async def test_resumed_turn_finds_decision_made_while_gateway_was_down(
    boot: Boot, desk: Desk, message: Message, open_database: Callable[[], Database]
) -> None:
    turn = await crash_while_asking(boot, desk, message)
    database = open_database()
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    elsewhere = Approvals(database=database, clock=lambda: BEGIN, pause=pause)
    act = Act(principal="operator", source="test", at=BEGIN)

    with pytest.raises(NotWaiting):
        await elsewhere.decide("gateway", turn.id, "c1", replace(YES, arguments={"amount": 1}), act)
    database.replica = "another"
    with pytest.raises(NotWaiting, match="The replica that runs the turn has not checked"):
        await elsewhere.decide("gateway", turn.id, "c1", replace(YES, arguments={"amount": 1}), act)
    assert sum(waits) == pytest.approx(10)
    await elsewhere.decide("gateway", turn.id, "c1", YES, act)
    database.close()

    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Done."
    assert desk.done == ["5 to ana"]


async def test_approval_requested_while_clock_was_ahead_expires_on_time(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    looks: asyncio.Queue[float] = asyncio.Queue()
    go = asyncio.Semaphore(0)

    async def pause(seconds: float) -> None:
        looks.put_nowait(seconds)
        await go.acquire()

    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch, pause=pause, lasts=timedelta(seconds=30))

    watch.now += timedelta(days=1_000)
    gateway = await boot(ScriptedModel([pay()], "Nobody was there."), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(message())
    assert await looks.get() == 30.0
    watch.now = BEGIN
    go.release()
    assert await looks.get() == 30.0
    watch.now += timedelta(seconds=30)
    go.release()

    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Nobody was there."
    assert (desk.done, await states(gateway)) == ([], ["expired"])


async def test_expired_approval_denies_the_call(boot: Boot, desk: Desk, message: Message, watch: Watch) -> None:
    rests: asyncio.Queue[float] = asyncio.Queue()
    go = asyncio.Event()

    async def pause(seconds: float) -> None:
        rests.put_nowait(seconds)
        await go.wait()

    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch, pause=pause, lasts=timedelta(seconds=90))

    gateway = await boot(ScriptedModel([pay()], "Nobody was there."), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(message())
    assert [await rests.get()] == [60.0]  # it reads the row once a minute
    watch.now += timedelta(seconds=60)
    go.set()
    assert await rests.get() == 30.0
    assert await states(gateway) == ["open"]
    watch.now += timedelta(seconds=30)

    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Nobody was there."

    assert (desk.done, await states(gateway)) == ([], ["expired"])
    assert "no answer came in time" in returned(gateway.model.requests[1].messages)["c1"]
    with pytest.raises(AlreadyDecided, match="expired"):
        await decide(gateway, turn, YES)


async def test_next_question_is_not_sent_after_approvals_expire(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    """The second approval expires as well, although it was requested later."""
    go = asyncio.Event()
    asking = iter([BEGIN, BEGIN + timedelta(seconds=1)])

    async def pause(_: float) -> None:
        await go.wait()

    def clock() -> datetime:
        return next(asking, None) or watch()

    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=clock, pause=pause, lasts=timedelta(seconds=60))

    def count_questions(connection: Connection) -> int:
        in_chat = sa.select(sa.func.count()).where(tables.deliveries.c.text.contains("May I run"))
        return connection.execute(in_chat).scalar_one()

    model = ScriptedModel([pay(1, id_="c1"), pay(2, id_="c2")], "Nobody was there.")
    gateway = await boot(model, desk.toolset(), approvals=approvals)
    in_chat = {"principal": "connector:tg", "account": "tg", "message": "1", "place": "{}"}
    turn = await gateway.turns.accept(replace(message(), **in_chat))
    await wait_for_requests(gateway, turn, 2)
    watch.now += timedelta(seconds=60)
    go.set()
    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Nobody was there."

    assert await states(gateway) == ["expired", "expired"]
    assert await gateway.database.run(count_questions) == 1


async def test_approval_expires_while_gateway_is_down(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch)

    gateway = await boot(ScriptedModel([pay()]), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    await gateway.crash()
    watch.now += timedelta(hours=1)

    gateway = await boot(ScriptedModel("Too late."), desk.toolset(), approvals=approvals)

    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Too late."
    assert (desk.done, await states(gateway)) == ([], ["expired"])


async def test_approval_after_expiry_is_refused_before_the_next_check(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch)

    gateway = await boot(ScriptedModel([pay()], "Too late."), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    watch.now += timedelta(hours=1)

    assert await gateway.turns.approvals.open_of("gateway", turn.id) == []
    with pytest.raises(AlreadyDecided, match="expired"):
        await decide(gateway, turn, YES)

    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Too late."
    assert desk.done == []


async def test_first_of_concurrent_decisions_counts(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "Ended."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)

    outcomes = await asyncio.gather(
        *(decide(gateway, turn, choice) for choice in (NO, YES, NO, YES)), return_exceptions=True
    )
    await gateway.turns.reader.wait_for_end(turn)

    assert [isinstance(outcome, Approval) for outcome in outcomes] == [True, False, True, False]
    assert all(isinstance(outcome, AlreadyDecided) for outcome in outcomes[1::2])
    assert desk.done == []
    acts = await gateway.database.run(partial(audit.list_entries, before=None, limit=10))
    assert [(entry.action, entry.target, entry.detail["tool"]) for entry in acts] == [
        ("approval.deny", turn.id, "pay")
    ]


async def test_repeated_decision_changes_nothing_and_a_different_one_is_refused(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    first = await decide(gateway, turn, YES)
    await gateway.turns.reader.wait_for_end(turn)

    assert await decide(gateway, turn, YES, by="somebody else") == first
    for other in (NO, replace(YES, arguments={"amount": 5, "to": "bob"})):
        with pytest.raises(AlreadyDecided, match="already approved"):
            await decide(gateway, turn, other)
    for turn_id, call_id, owner in (
        (turn.id, "c2", "gateway"),
        ("t", "c1", "gateway"),
        (turn.id, "c1", "user:x"),
    ):
        with pytest.raises(NotFound):
            await decide(gateway, replace(turn, id=turn_id), YES, call_id, owner)


async def test_cancelling_a_waiting_turn_withdraws_its_approval(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "next"), desk.toolset())
    turn = await gateway.turns.accept(message())
    behind = await gateway.turns.accept(message("next"))
    await wait_for_requests(gateway, turn)

    cancelled = await gateway.turns.cancel("gateway", turn.id)

    assert (cancelled.state, await states(gateway)) == ("cancelled", ["withdrawn"])
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        await decide(gateway, turn, YES)
    assert (await gateway.turns.reader.wait_for_end(behind)).reply == "next"
    assert desk.done == []


async def test_cancellation_concurrent_with_approval_leaves_turn_cancelled(
    boot: Boot, desk: Desk, message: Message
) -> None:
    for first in ("cancel", "yes"):
        desk.done.clear()
        gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
        turn = await gateway.turns.accept(message(channel=first))
        await wait_for_requests(gateway, turn)
        acts = [gateway.turns.cancel("gateway", turn.id), decide(gateway, turn, YES)]

        in_order = acts if first == "cancel" else acts[::-1]
        outcomes: list[Any] = await asyncio.gather(*in_order, return_exceptions=True)

        faults = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(fault, AlreadyDecided) for fault in faults)
        # The call has not started when the cancellation arrives, also where the approval came first.
        assert (await state_of(gateway, turn), desk.done) == ("cancelled", [])
        await gateway.crash()


async def test_parallel_calls_each_get_their_own_approval(boot: Boot, desk: Desk, message: Message) -> None:
    note = ToolCallPart("note", {"line": "free"}, tool_call_id="c0")
    gateway = await boot(
        ScriptedModel([pay(1, id_="c1"), note, pay(2, id_="c2"), pay(3, id_="c3")], "Done."), desk.toolset()
    )
    turn = await gateway.turns.accept(message())

    questions = await wait_for_requests(gateway, turn, 3)
    assert [question["callId"] for question in questions] == ["c1", "c2", "c3"]
    while desk.done != ["free"]:  # a call that needs no approval runs at once
        await gateway.look()
    await decide(gateway, turn, YES, "c3")
    while desk.done != ["free", "3 to ana"]:
        await gateway.look()
    assert await state_of(gateway, turn) == "waiting"
    await gateway.crash()

    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    again = await wait_for_requests(gateway, turn, 2)
    assert [question["callId"] for question in again] == ["c1", "c2"]
    await decide(gateway, turn, NO, "c1")
    assert await state_of(gateway, turn) == "waiting"
    await decide(gateway, turn, YES, "c2")
    await gateway.turns.reader.wait_for_end(turn)

    assert desk.done == ["free", "3 to ana", "2 to ana"]
    told = returned(gateway.model.requests[0].messages)
    assert {id_: told[id_] for id_ in ("c0", "c2", "c3")} == {"c0": "noted", "c2": "paid 2", "c3": "paid 3"}
    assert "denied" in told["c1"]


async def test_waiting_turn_holds_its_session_but_no_slot(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "elsewhere", "Done.", "behind"), desk.toolset(), concurrency=1)
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    behind = await gateway.turns.accept(message("behind"))

    elsewhere = await gateway.turns.reader.wait_for_end(
        await gateway.turns.accept(message(channel="elsewhere"))
    )

    assert elsewhere.reply == "elsewhere"
    assert await state_of(gateway, behind) == "queued"
    await decide(gateway, turn, YES)
    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Done."
    assert (await gateway.turns.reader.wait_for_end(behind)).reply == "behind"


async def test_approved_turn_waits_for_a_free_slot_and_releases_it(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gate = asyncio.Event()
    script = ScriptedModel([pay(1, id_="a"), pay(2, id_="b")], ["busy", gate], "Done.", "last")
    gateway = await boot(script, desk.toolset(), concurrency=1)
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn, 2)
    busy = await gateway.turns.accept(message(channel="elsewhere"))
    await gateway.until_asked(2)
    await asyncio.gather(decide(gateway, turn, YES, "a"), decide(gateway, turn, YES, "b"))
    for _ in range(20):
        await gateway.look()
    assert len(gateway.model.requests) == 2  # the turn has its decisions but no free slot

    gate.set()

    assert (await gateway.turns.reader.wait_for_end(busy)).reply == "busy"
    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Done."
    assert sorted(desk.done) == ["1 to ana", "2 to ana"]
    assert (
        await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message(channel="third")))
    ).reply == "last"


async def test_turn_and_tool_timeouts_pause_while_approval_is_open(
    boot: Boot, desk: Desk, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn timeout is one minute; the wait is longer by the event loop's clock."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    desk.gates["slow"] = asyncio.Event()
    gateway = await boot(ScriptedModel([pay(to="slow")]), desk.toolset(), turn_timeout=60)
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    ahead += 100
    for _ in range(20):
        await gateway.look()
    assert await state_of(gateway, turn) == "waiting"
    await decide(gateway, turn, YES)
    while desk.done != ["5 to slow"]:
        await gateway.look()
    ahead += 100

    ended = await gateway.turns.reader.wait_for_end(turn)

    assert desk.done == ["5 to slow"]
    assert ended.failure is not None
    assert ended.failure.code == "turn_timeout"  # the tool itself took too long


@pytest.mark.parametrize(
    ("who", "asks"),
    [
        ({"principal": "schedule:sch_1"}, False),
        ({"principal": "connector:hook", "account": "hook", "message": "1", "place": "{}"}, False),
        ({"principal": "connector:tg", "account": "tg", "message": "1", "place": "{}"}, True),
        ({"principal": "schedule:sch_1", "account": "tg", "place": "{}"}, True),
        ({"principal": "token:tok_1"}, True),
    ],
)
async def test_call_is_denied_at_once_where_no_person_can_be_asked(
    boot: Boot, desk: Desk, message: Message, who: dict[str, str], asks: bool
) -> None:
    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=lambda: BEGIN, can_ask=lambda account: account == "tg")

    gateway = await boot(ScriptedModel([pay()], "Ended."), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(replace(message(), **who))

    if asks:
        await wait_for_requests(gateway, turn)
        return
    await gateway.turns.reader.wait_for_end(turn)
    assert (desk.done, await states(gateway)) == ([], [])
    assert "there is no person to ask" in returned(gateway.model.requests[1].messages)["c1"]


async def test_call_with_arguments_too_long_to_review_is_denied_at_once(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(to="\u200b" * 42_000)], "Ended."), desk.toolset())

    turn = await gateway.turns.accept(message())
    await gateway.turns.reader.wait_for_end(turn)

    assert (desk.done, await states(gateway)) == ([], [])
    assert "too long for a person to review" in returned(gateway.model.requests[1].messages)["c1"]


async def test_changed_arguments_too_long_to_review_are_refused(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Ended."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)

    with pytest.raises(InvalidField, match="at most 250,000 characters"):
        await decide(gateway, turn, replace(YES, arguments={"amount": 5, "to": "b" * 250_000}))

    assert await states(gateway) == ["open"]


@pytest.mark.parametrize("how", ["cancelled", "expired", "decided"])
@pytest.mark.parametrize("before", ["", "I pay.", "May I run `pay`?"])
async def test_closed_approval_is_not_sent_but_the_text_before_it_is(
    boot: Boot, desk: Desk, message: Message, watch: Watch, how: str, before: str
) -> None:
    """The platform is unreachable, so deliveries wait."""
    hours = asyncio.Queue[None]()

    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch, pause=lambda _: hours.get())

    script = ScriptedModel([*([before] if before else []), pay()], "Done.")
    gateway = await boot(script, desk.toolset(), approvals=approvals)
    chat = {"account": "tg", "message": "1", "place": "{}"}
    turn = await gateway.turns.accept(replace(message(), **chat))
    await wait_for_requests(gateway, turn)
    *said, (state, text) = await next_question(gateway)
    assert said == ([("pending", before)] if before else [])
    assert (state, text.endswith("Answer yes or no.")) == ("pending", True)

    if how == "cancelled":
        await gateway.turns.cancel("gateway", turn.id)
    elif how == "decided":
        await decide(gateway, turn, YES)
    else:
        watch.now += timedelta(hours=2)
        hours.put_nowait(None)
    await gateway.turns.reader.wait_for_end(turn)

    behind = [] if how == "cancelled" else [("pending", "Done.")]
    assert await next_question(gateway) == [*said, ("dropped", text), *behind]


async def test_stop_does_not_wait_for_open_approvals(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    (first,) = await wait_for_requests(gateway, turn)

    async with asyncio.timeout(5):
        await gateway.turns.stop(grace=1000)

    gateway.database.close()
    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    assert await wait_for_requests(gateway, turn) == [first]
    assert (await gateway.turns.reader.get("gateway", turn.id)).crashes == 0


async def test_approvals_are_listed_in_pages_newest_first(boot: Boot, desk: Desk, message: Message) -> None:
    calls = [pay(number, id_=f"c{number}") for number in range(5)]
    gateway = await boot(ScriptedModel(calls), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn, 5)
    listed: list[str] = []
    after: str | None = None
    while True:
        page = await gateway.turns.approvals.list_open("*", limit=2, after=after)
        listed += [one.call_id for one in page.items]
        after = page.next
        if after is None:
            break

    assert listed == ["c4", "c3", "c2", "c1", "c0"]
    assert (await gateway.turns.approvals.list_open("user:ana", limit=9)).items == []


@pytest.mark.parametrize(("asked_with", "said_with"), [(None, "tok_a"), ("tok_a", None), ("tok_a", "tok_b")])
async def test_yes_without_user_counts_only_with_the_same_token(
    boot: Boot, desk: Desk, message: Message, asked_with: str | None, said_with: str | None
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Paid."), desk.toolset())
    turn = await gateway.turns.accept(message(token=asked_with))
    await wait_for_requests(gateway, turn)

    other = await gateway.turns.accept(message("yes", token=said_with))

    assert (other.state, desk.done) == ("queued", [])
    await gateway.turns.cancel("gateway", other.id)
    assert (await gateway.turns.accept(message("yes", token=asked_with))).state == "completed"
    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Paid."


async def test_scheduled_message_does_not_answer_an_approval(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "paid", "hello"), desk.toolset())
    turn = await gateway.turns.accept(message("pay ana"))
    await wait_for_requests(gateway, turn)

    def fires(_connection: Connection, _turn: Turn) -> None: ...

    of_schedule = replace(message("yes"), principal=f"{SCHEDULE_PRINCIPAL}sch_1")
    fired = await gateway.turns.submit(of_schedule, also=fires)

    assert (fired.turn.state, await states(gateway), desk.done) == ("queued", ["open"], [])
    await gateway.turns.accept(message("yes"))  # from the same speaker as the request
    await gateway.turns.reader.wait_for_end(fired.turn)
    assert desk.done == ["5 to ana"]


async def until_shown(gateway: Any, turn: Turn, amount: int) -> Approval:
    """Wait until the turn's only open approval is for this amount, mark it as streamed, and return it."""
    while [one.arguments["amount"] for one in await gateway.turns.approvals.open_of("*", turn.id)] != [amount]:
        await gateway.look()
    (approval,) = await gateway.turns.approvals.open_of("*", turn.id)
    await gateway.turns.approvals.note_streamed(approval.id)
    return approval


async def word(gateway: Any, message: Message, content: str = "yes") -> str:
    """Send a message over HTTP and return its reply."""
    return (await gateway.turns.accept(message(content))).reply or ""


def question(amount: int) -> str:
    return question_text("pay", {"amount": amount, "to": "ana"})


async def test_approval_is_decided_by_its_id_and_the_digest_of_the_call(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    (told,) = await wait_for_requests(gateway, turn)
    act = Act(principal="operator", source="test", at=BEGIN)
    approvals = gateway.turns.approvals
    assert told["digest"] == call_digest("pay", {"to": "ana", "amount": 5})

    other = replace(YES, digest=call_digest("pay", {"to": "ana", "amount": 6}))
    for owner, id_, choice, error in (
        ("gateway", told["id"], other, ApprovalChanged),
        ("gateway", told["id"], replace(NO, digest=other.digest), ApprovalChanged),
        ("gateway", "apr_1", YES, NotFound),
        ("user:x", told["id"], YES, NotFound),
    ):
        with pytest.raises(error):
            await approvals.decide_by_id(owner, id_, choice, act)
    with pytest.raises(ApprovalChanged):
        await decide(gateway, turn, other)
    assert (desk.done, await states(gateway)) == ([], ["open"])

    yes = replace(YES, digest=told["digest"])
    first = await approvals.decide_by_id("gateway", told["id"], yes, act)
    await gateway.turns.reader.wait_for_end(turn)
    assert (desk.done, first.state) == (["5 to ana"], "approved")
    assert await approvals.decide_by_id("gateway", told["id"], yes, act) == first
    with pytest.raises(AlreadyDecided):
        await approvals.decide_by_id("gateway", told["id"], NO, act)


async def test_calls_with_repeated_provider_ids_are_decided_separately(
    boot: Boot, desk: Desk, message: Message
) -> None:
    """Ids stay unique across a crash: the ids of settled calls are not given again."""
    gateway = await boot(ScriptedModel([pay(1), pay(2)], [pay(3)]), desk.toolset())
    turn = await gateway.turns.accept(message())
    first = [one["callId"] for one in await wait_for_requests(gateway, turn, 2)]
    for call_id in first:
        await decide(gateway, turn, YES, call_id)
    await until_shown(gateway, turn, 3)
    await gateway.crash()
    gateway = await boot(ScriptedModel([pay(4)], "Done."), desk.toolset())
    (third,) = [one["callId"] for one in await wait_for_requests(gateway, turn)]

    assert (await decide(gateway, turn, YES, first[0])).arguments["amount"] == 1
    assert desk.done == ["1 to ana", "2 to ana"]
    await decide(gateway, turn, YES, third)
    fourth = (await until_shown(gateway, turn, 4)).call_id
    await decide(gateway, turn, YES, fourth)
    await gateway.turns.reader.wait_for_end(turn)

    assert first[0] == "c1"
    assert len({*first, third, fourth}) == 4
    assert desk.done == ["1 to ana", "2 to ana", "3 to ana", "4 to ana"]


async def test_stored_calls_with_equal_ids_are_decided_by_approval_id(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(1, id_="a"), pay(2, id_="b")], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    told = await wait_for_requests(gateway, turn, 2)
    table = tables.approvals

    def rename(connection: Connection) -> None:
        connection.execute(sa.update(table).values(call_id="odd\n/..", step=sa.text("rowid")))

    await gateway.database.run(rename)

    with pytest.raises(ApprovalChanged, match=told[1]["id"]):
        await decide(gateway, turn, YES, "odd\n/..")
    act = Act(principal="operator", source="test", at=BEGIN)
    await gateway.turns.approvals.decide_by_id("gateway", told[1]["id"], YES, act)
    assert await states(gateway) == ["open", "approved"]


async def test_reopened_approval_is_not_decided_by_its_former_id(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    (former,) = await gateway.turns.approvals.open_of("gateway", turn.id)

    def ask_anew(connection: Connection) -> tuple[Approval, bool]:
        rows.withdraw(connection, turn.id, BEGIN)
        rows.ask(connection, replace(former, id="apr_2"))
        return rows.decide(connection, former, ApprovalVerdict(state="approved", at=BEGIN, by="operator"))

    found, decided = await gateway.database.run(ask_anew)

    assert (found.id, found.state, decided) == ("apr_2", "open", False)


async def test_decision_does_not_apply_to_different_arguments(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay(1)], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn)
    (former,) = await gateway.turns.approvals.open_of("gateway", turn.id)
    await decide(gateway, turn, YES)
    other = replace(former, id="apr_2", arguments={"amount": 2, "to": "ana"})

    found = await gateway.database.run(partial(rows.ask, asked=other))

    assert (found.id, found.state) == ("apr_2", "open")
    same = replace(other, id="apr_3")
    assert (await gateway.database.run(partial(rows.ask, asked=same))).id == "apr_2"


async def test_first_http_yes_shows_the_question_and_the_second_answers_it(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    while not await gateway.turns.approvals.open_of("*", turn.id):
        await gateway.look()

    assert (await word(gateway, message)).endswith(question(5))
    assert desk.done == []
    assert await word(gateway, message) == "I run `pay`."

    assert (await gateway.turns.reader.wait_for_end(turn)).reply == "Done."
    assert desk.done == ["5 to ana"]


async def test_http_yes_does_not_answer_a_question_not_yet_shown(
    boot: Boot, desk: Desk, message: Message
) -> None:
    """The first approval is decided elsewhere, also while the reply shows it."""
    gateway = await boot(
        ScriptedModel([pay(1, id_="a")], [pay(2, id_="b")], [pay(3, id_="c")], "Done."), desk.toolset()
    )
    turn = await gateway.turns.accept(message())
    await until_shown(gateway, turn, 1)
    await decide(gateway, turn, YES, "a")
    await until_shown(gateway, turn, 2)

    assert (await word(gateway, message)).endswith(question(2))
    await decide(gateway, turn, NO, "b")
    await until_shown(gateway, turn, 3)
    assert (await word(gateway, message)).endswith(question(3))

    assert desk.done == ["1 to ana"]
    assert await word(gateway, message, "no") == "I do not run `pay`."
    await gateway.turns.reader.wait_for_end(turn)
    assert desk.done == ["1 to ana"]


async def test_caller_of_a_retried_turn_receives_its_question(boot: Boot, desk: Desk, message: Message) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([LookupError()], [gate, "first"], [pay()], "done")
    gateway = await boot(model, desk.toolset())
    failed = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message()))
    await gateway.turns.accept(message("other"))
    again = await gateway.turns.retry(failed.owner, failed.id)
    question = asyncio.ensure_future(gateway.turns.open_approvals.wait_for_question(again))
    events = asyncio.ensure_future(gateway.watch(again))
    await gateway.model.asked(2)
    gate.set()

    async with asyncio.timeout(20):
        assert await question is not None
    await gateway.turns.cancel(again.owner, again.id)
    ids = [event.id for event in await events]
    assert len(ids) == len(set(ids))


async def test_repeated_http_yes_answers_one_question(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay(1, id_="a")], [pay(2, id_="b")]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await until_shown(gateway, turn, 1)
    assert await word(gateway, message) == "I run `pay`."
    await until_shown(gateway, turn, 2)

    assert (await word(gateway, message)).endswith(question(2))

    assert desk.done == ["1 to ana"]


async def test_http_answers_decide_several_questions_one_by_one(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(1, id_="a"), pay(2, id_="b")], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn, 2)

    replies = [await word(gateway, message, content) for content in ("yes", "yes", "no")]
    await gateway.turns.reader.wait_for_end(turn)

    assert replies[0].endswith(question(1))
    assert replies[1] == f"I run `pay`.\n\n{question(2)}"
    assert replies[2] == "I do not run `pay`."
    assert desk.done == ["1 to ana"]


async def test_several_http_yes_at_the_same_time_answer_one_question(
    boot: Boot, desk: Desk, message: Message
) -> None:
    calls = [pay(1, id_="a"), pay(2, id_="b"), pay(3, id_="c")]
    gateway = await boot(ScriptedModel(calls, "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await wait_for_requests(gateway, turn, 3)
    assert (await word(gateway, message)).endswith(question(1))

    replies = await asyncio.gather(*(word(gateway, message) for _ in range(3)))

    assert replies[0] == f"I run `pay`.\n\n{question(2)}"
    assert replies[1].endswith(question(2))
    assert replies[2] == replies[1]
    assert await word(gateway, message, "no") == f"I do not run `pay`.\n\n{question(3)}"
    assert await word(gateway, message, "no") == "I do not run `pay`."
    await gateway.turns.reader.wait_for_end(turn)
    assert desk.done == ["1 to ana"]


async def test_http_yes_distinguishes_calls_that_differ_after_the_cut(
    boot: Boot, desk: Desk, message: Message
) -> None:
    """The approval that the reply showed is decided elsewhere; the next question begins with the same text."""
    long = ["x" * 2_000 + end for end in "ab"]
    gateway = await boot(
        ScriptedModel([pay(1, to=long[0], id_="a")], [pay(1, to=long[1], id_="b")]), desk.toolset()
    )
    turn = await gateway.turns.accept(message())
    while not await gateway.turns.approvals.open_of("*", turn.id):
        await gateway.look()
    await word(gateway, message)
    await decide(gateway, turn, NO, "a")
    await until_shown(gateway, turn, 1)

    assert (await word(gateway, message)).startswith("That does not count as an answer")
    assert desk.done == []
