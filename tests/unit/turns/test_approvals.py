"""A call that needs a yes waits for it, across crashes, and never runs without one."""

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
from torana.messages import Inbound, Turn
from torana.models.builtin.telling import failure_for_people
from torana.store import approvals as rows
from torana.store import audit, tables
from torana.store.approvals import Approval, Verdict
from torana.store.audit import Act
from torana.store.database import Connection, Database
from torana.store.questions import call_digest, question_text
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.turns.approvals import Approvals, Choice

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]

BEGIN = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


class Watch:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Desk:
    """Tools that need a yes, and what was done with them."""

    done: list[str] = field(default_factory=list[str])
    gates: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    async def pay(self, amount: int, to: str = "ana") -> str:
        """Pay somebody; twice is twice."""
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


async def asked(gateway: Any, turn: Turn, times: int = 1) -> list[dict[str, Any]]:
    """Wait until the turn has asked so often in this attempt; what it asked."""
    found: list[dict[str, Any]] = []
    async for event in gateway.turns.events(turn):
        if event.type == "approval.required":
            found.append(dict(event.data))
            gateway.turns.approvals.note_streamed(event.data["id"])  # as an event stream does
        if len(found) == times:
            return found
    raise AssertionError(f"it ended, and asked {len(found)} times")


def returned(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    parts = [part for message in messages for part in message.parts]
    return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}


async def states(gateway: Any) -> list[str]:
    def read(connection: sa.Connection) -> list[str]:
        return list(connection.execute(sa.select(tables.approvals.c.state)).scalars())

    return await gateway.database.run(read)


async def to_say(gateway: Any) -> list[tuple[str, str]]:
    """What is to be said on platforms, in order, and how that stands."""
    query = sa.select(tables.deliveries.c.state, tables.deliveries.c.text)

    def read(connection: Connection) -> list[tuple[str, str]]:
        return [tuple(row) for row in connection.execute(query.order_by(tables.deliveries.c.number))]

    return await gateway.database.run(read)


async def state_of(gateway: Any, turn: Turn) -> str:
    return (await gateway.turns.get("gateway", turn.id)).state


async def test_a_call_waits_for_its_yes_and_then_runs(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel(["I pay. ", pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())

    (question,) = await asked(gateway, turn)

    assert question["callId"] == "c1"
    assert (question["tool"], question["arguments"]) == ("pay", {"amount": 5, "to": "ana"})
    assert datetime.fromisoformat(question["expiresAt"]) > BEGIN
    assert (desk.done, await state_of(gateway, turn)) == ([], "waiting")
    assert [one.call_id for one in await gateway.turns.approvals.open_of("gateway", turn.id)] == ["c1"]
    assert gateway.turns.counts() == {"running": 0, "waiting": 1, "queued": 0}
    await decide(gateway, turn, YES)
    ended = await gateway.turns.ended(turn)
    assert (desk.done, ended.reply, ended.state) == (["5 to ana"], "I pay. \n\nDone.", "completed")
    assert returned(gateway.model.requests[1].messages) == {"c1": "paid 5"}
    assert await gateway.turns.approvals.open_of("gateway", turn.id) == []


async def test_a_no_is_told_to_the_model_with_its_reason(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "I did not."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)

    await decide(gateway, turn, replace(NO, reason="too much"))
    await gateway.turns.ended(turn)

    assert desk.done == []
    told = returned(gateway.model.requests[1].messages)["c1"]
    why = "pay was not run: it was denied by whoever was asked, who said: too much."
    assert told.startswith(why)
    assert failure_for_people(told) == why


async def test_whoever_approves_may_change_the_arguments_and_the_model_is_told(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(500)], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)

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
    await gateway.turns.ended(turn)

    assert desk.done == ["50 to bob"]
    told = returned(gateway.model.requests[1].messages)["c1"]
    assert (told["arguments"], told["result"]) == ({"amount": 50, "to": "bob"}, "paid 50")


async def test_a_question_outlives_crashes_and_is_asked_once(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel(["I pay. ", pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    (first,) = await asked(gateway, turn)
    for _ in range(7):  # more often than a turn may kill the gateway: it is not to blame
        await gateway.crash()
        gateway = await boot(ScriptedModel("Done."), desk.toolset())
        assert await asked(gateway, turn) == [first]
        assert (await state_of(gateway, turn), await states(gateway)) == ("waiting", ["open"])
        assert gateway.model.requests == []

    await decide(gateway, turn, YES)
    ended = await gateway.turns.ended(turn)

    assert (desk.done, ended.reply, ended.attempt, ended.crashes) == (["5 to ana"], "I pay. \n\nDone.", 8, 0)


@pytest.mark.parametrize(
    ("choice", "done"),
    [(YES, ["5 to ana"]), (NO, []), (replace(YES, arguments={"amount": 7}), ["7 to ana"])],
)
async def test_what_was_decided_before_a_crash_holds_after_it(
    boot: Boot, desk: Desk, message: Message, choice: Choice, done: list[str]
) -> None:
    """The process dies in the very moment in which the decision is committed."""
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    gateway.turns.approvals.decided = id  # nobody who waits hears of it
    await decide(gateway, turn, choice)
    await gateway.crash()

    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    await gateway.turns.ended(turn)

    assert desk.done == done
    types = [event.type for event in await gateway.watch(turn)]
    assert "approval.required" not in types


async def test_a_call_that_was_approved_and_cut_off_is_not_started_again(
    boot: Boot, desk: Desk, message: Message
) -> None:
    desk.gates["ana"] = asyncio.Event()
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    await decide(gateway, turn, YES)
    while not desk.done:
        await gateway.look()
    await gateway.crash()

    gateway = await boot(ScriptedModel("Who knows."), desk.toolset())
    ended = await gateway.turns.ended(turn)

    assert (desk.done, ended.reply) == (["5 to ana"], "Who knows.")
    assert "outcome is unknown" in returned(gateway.model.requests[0].messages)["c1"]


async def test_decided_while_nobody_waits_it_is_found_when_the_turn_comes_past_it(
    boot: Boot, desk: Desk, message: Message, open_database: Callable[[], Database]
) -> None:
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    await gateway.crash()
    database = open_database()
    elsewhere = Approvals(database=database, clock=lambda: BEGIN)
    act = Act(principal="operator", source="test", at=BEGIN)

    with pytest.raises(NotWaiting):
        await elsewhere.decide("gateway", turn.id, "c1", replace(YES, arguments={"amount": 1}), act)
    await elsewhere.decide("gateway", turn.id, "c1", YES, act)
    database.close()

    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    assert (await gateway.turns.ended(turn)).reply == "Done."
    assert desk.done == ["5 to ana"]


async def test_a_question_that_was_asked_while_the_clock_was_ahead_expires_after_its_time(
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

    assert (await gateway.turns.ended(turn)).reply == "Nobody was there."
    assert (desk.done, await states(gateway)) == ([], ["expired"])


async def test_after_its_time_a_question_is_a_no(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    rests: asyncio.Queue[float] = asyncio.Queue()
    go = asyncio.Event()

    async def pause(seconds: float) -> None:
        rests.put_nowait(seconds)
        await go.wait()

    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch, pause=pause, lasts=timedelta(seconds=90))

    gateway = await boot(ScriptedModel([pay()], "Nobody was there."), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(message())
    assert [await rests.get()] == [60.0]  # it looks at the row now and then
    watch.now += timedelta(seconds=60)
    go.set()
    assert await rests.get() == 30.0
    assert await states(gateway) == ["open"]
    watch.now += timedelta(seconds=30)

    assert (await gateway.turns.ended(turn)).reply == "Nobody was there."

    assert (desk.done, await states(gateway)) == ([], ["expired"])
    assert "nobody answered in time" in returned(gateway.model.requests[1].messages)["c1"]
    with pytest.raises(AlreadyDecided, match="expired"):
        await decide(gateway, turn, YES)


async def test_where_nobody_answers_in_a_chat_the_next_question_is_not_shown(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    """It is over as well, though it was asked a little later."""
    go = asyncio.Event()
    asking = iter([BEGIN, BEGIN + timedelta(seconds=1)])

    async def pause(_: float) -> None:
        await go.wait()

    def clock() -> datetime:
        return next(asking, None) or watch()

    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=clock, pause=pause, lasts=timedelta(seconds=60))

    def shown(connection: Connection) -> int:
        in_chat = sa.select(sa.func.count()).where(tables.deliveries.c.text.contains("May I run"))
        return connection.execute(in_chat).scalar_one()

    model = ScriptedModel([pay(1, id_="c1"), pay(2, id_="c2")], "Nobody was there.")
    gateway = await boot(model, desk.toolset(), approvals=approvals)
    in_chat = {"principal": "connector:tg", "account": "tg", "message": "1", "place": "{}"}
    turn = await gateway.turns.accept(replace(message(), **in_chat))
    await asked(gateway, turn, 2)
    watch.now += timedelta(seconds=60)
    go.set()
    assert (await gateway.turns.ended(turn)).reply == "Nobody was there."

    assert await states(gateway) == ["expired", "expired"]
    assert await gateway.database.run(shown) == 1


async def test_a_question_expires_also_while_the_gateway_is_down(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch)

    gateway = await boot(ScriptedModel([pay()]), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    await gateway.crash()
    watch.now += timedelta(hours=1)

    gateway = await boot(ScriptedModel("Too late."), desk.toolset(), approvals=approvals)

    assert (await gateway.turns.ended(turn)).reply == "Too late."
    assert (desk.done, await states(gateway)) == ([], ["expired"])


async def test_a_yes_that_comes_after_the_time_is_too_late_even_if_nobody_has_looked(
    boot: Boot, desk: Desk, message: Message, watch: Watch
) -> None:
    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch)

    gateway = await boot(ScriptedModel([pay()], "Too late."), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    watch.now += timedelta(hours=1)

    assert await gateway.turns.approvals.open_of("gateway", turn.id) == []
    with pytest.raises(AlreadyDecided, match="expired"):
        await decide(gateway, turn, YES)

    assert (await gateway.turns.ended(turn)).reply == "Too late."
    assert desk.done == []


async def test_of_many_deciders_one_counts(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "Ended."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)

    outcomes = await asyncio.gather(
        *(decide(gateway, turn, choice) for choice in (NO, YES, NO, YES)), return_exceptions=True
    )
    await gateway.turns.ended(turn)

    assert [isinstance(outcome, Approval) for outcome in outcomes] == [True, False, True, False]
    assert all(isinstance(outcome, AlreadyDecided) for outcome in outcomes[1::2])
    assert desk.done == []
    acts = await gateway.database.run(partial(audit.listed, before=None, limit=10))
    assert [(entry.action, entry.target, entry.detail["tool"]) for entry in acts] == [
        ("approval.deny", turn.id, "pay")
    ]


async def test_the_same_decision_again_changes_nothing_and_another_is_refused(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    first = await decide(gateway, turn, YES)
    await gateway.turns.ended(turn)

    assert await decide(gateway, turn, YES, by="somebody else") == first
    for other in (NO, replace(YES, arguments={"amount": 5, "to": "bob"})):
        with pytest.raises(AlreadyDecided, match="approved already"):
            await decide(gateway, turn, other)
    for turn_id, call_id, owner in (
        (turn.id, "c2", "gateway"),
        ("t", "c1", "gateway"),
        (turn.id, "c1", "user:x"),
    ):
        with pytest.raises(NotFound):
            await decide(gateway, replace(turn, id=turn_id), YES, call_id, owner)


async def test_cancelling_a_turn_that_waits_ends_it_at_once(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "next"), desk.toolset())
    turn = await gateway.turns.accept(message())
    behind = await gateway.turns.accept(message("next"))
    await asked(gateway, turn)

    cancelled = await gateway.turns.cancel("gateway", turn.id)

    assert (cancelled.state, await states(gateway)) == ("cancelled", ["withdrawn"])
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        await decide(gateway, turn, YES)
    assert (await gateway.turns.ended(behind)).reply == "next"
    assert desk.done == []


async def test_a_cancellation_and_a_yes_at_once_leave_one_truth(
    boot: Boot, desk: Desk, message: Message
) -> None:
    for first in ("cancel", "yes"):
        desk.done.clear()
        gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
        turn = await gateway.turns.accept(message(channel=first))
        await asked(gateway, turn)
        acts = [gateway.turns.cancel("gateway", turn.id), decide(gateway, turn, YES)]

        in_order = acts if first == "cancel" else acts[::-1]
        outcomes: list[Any] = await asyncio.gather(*in_order, return_exceptions=True)

        faults = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(fault, AlreadyDecided) for fault in faults)
        # Also where the yes came first: the call has not begun when the cancellation is there.
        assert (await state_of(gateway, turn), desk.done) == ("cancelled", [])
        await gateway.crash()


async def test_parallel_calls_are_asked_about_one_by_one(boot: Boot, desk: Desk, message: Message) -> None:
    note = ToolCallPart("note", {"line": "free"}, tool_call_id="c0")
    gateway = await boot(
        ScriptedModel([pay(1, id_="c1"), note, pay(2, id_="c2"), pay(3, id_="c3")], "Done."), desk.toolset()
    )
    turn = await gateway.turns.accept(message())

    questions = await asked(gateway, turn, 3)
    assert [question["callId"] for question in questions] == ["c1", "c2", "c3"]
    while desk.done != ["free"]:  # what needs no yes waits for nobody
        await gateway.look()
    await decide(gateway, turn, YES, "c3")
    while desk.done != ["free", "3 to ana"]:
        await gateway.look()
    assert await state_of(gateway, turn) == "waiting"
    await gateway.crash()

    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    again = await asked(gateway, turn, 2)
    assert [question["callId"] for question in again] == ["c1", "c2"]
    await decide(gateway, turn, NO, "c1")
    assert await state_of(gateway, turn) == "waiting"
    await decide(gateway, turn, YES, "c2")
    await gateway.turns.ended(turn)

    assert desk.done == ["free", "3 to ana", "2 to ana"]
    told = returned(gateway.model.requests[0].messages)
    assert {id_: told[id_] for id_ in ("c0", "c2", "c3")} == {"c0": "noted", "c2": "paid 2", "c3": "paid 3"}
    assert "denied" in told["c1"]


async def test_who_waits_holds_no_place_and_its_session_only(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "elsewhere", "Done.", "behind"), desk.toolset(), concurrency=1)
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    behind = await gateway.turns.accept(message("behind"))

    elsewhere = await gateway.turns.ended(await gateway.turns.accept(message(channel="elsewhere")))

    assert elsewhere.reply == "elsewhere"
    assert await state_of(gateway, behind) == "queued"
    await decide(gateway, turn, YES)
    assert (await gateway.turns.ended(turn)).reply == "Done."
    assert (await gateway.turns.ended(behind)).reply == "behind"


async def test_who_was_approved_waits_for_a_place_again_and_gives_it_back(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gate = asyncio.Event()
    script = ScriptedModel([pay(1, id_="a"), pay(2, id_="b")], ["busy", gate], "Done.", "last")
    gateway = await boot(script, desk.toolset(), concurrency=1)
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn, 2)
    busy = await gateway.turns.accept(message(channel="elsewhere"))
    await gateway.until_asked(2)
    await asyncio.gather(decide(gateway, turn, YES, "a"), decide(gateway, turn, YES, "b"))
    for _ in range(20):
        await gateway.look()
    assert len(gateway.model.requests) == 2  # it has its answers, and no place to go on

    gate.set()

    assert (await gateway.turns.ended(busy)).reply == "busy"
    assert (await gateway.turns.ended(turn)).reply == "Done."
    assert sorted(desk.done) == ["1 to ana", "2 to ana"]
    assert (await gateway.turns.ended(await gateway.turns.accept(message(channel="third")))).reply == "last"


async def test_neither_the_turns_time_nor_the_tools_runs_while_it_waits(
    boot: Boot, desk: Desk, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn may take a minute, and waits for longer by the clock that asyncio keeps."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    desk.gates["slow"] = asyncio.Event()
    gateway = await boot(ScriptedModel([pay(to="slow")]), desk.toolset(), turn_timeout=60)
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    ahead += 100
    for _ in range(20):
        await gateway.look()
    assert await state_of(gateway, turn) == "waiting"
    await decide(gateway, turn, YES)
    while desk.done != ["5 to slow"]:
        await gateway.look()
    ahead += 100

    ended = await gateway.turns.ended(turn)

    assert desk.done == ["5 to slow"]
    assert ended.failure is not None
    assert ended.failure.code == "turn_timeout"  # the tool itself took too long, and only that


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
async def test_where_nobody_can_be_asked_it_is_a_no_at_once(
    boot: Boot, desk: Desk, message: Message, who: dict[str, str], asks: bool
) -> None:
    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=lambda: BEGIN, can_ask=lambda account: account == "tg")

    gateway = await boot(ScriptedModel([pay()], "Ended."), desk.toolset(), approvals=approvals)
    turn = await gateway.turns.accept(replace(message(), **who))

    if asks:
        await asked(gateway, turn)
        return
    await gateway.turns.ended(turn)
    assert (desk.done, await states(gateway)) == ([], [])
    assert "nobody who can be asked" in returned(gateway.model.requests[1].messages)["c1"]


@pytest.mark.parametrize("how", ["cancelled", "expired", "decided"])
@pytest.mark.parametrize("before", ["", "I pay.", "May I run `pay`?"])
async def test_what_nobody_can_answer_any_more_is_not_asked_but_what_the_reply_was_before_it_is_said(
    boot: Boot, desk: Desk, message: Message, watch: Watch, how: str, before: str
) -> None:
    """The chat's platform is away: what is to be said there waits."""
    hours = asyncio.Queue[None]()

    def approvals(database: Database) -> Approvals:
        return Approvals(database=database, clock=watch, pause=lambda _: hours.get())

    script = ScriptedModel([*([before] if before else []), pay()], "Done.")
    gateway = await boot(script, desk.toolset(), approvals=approvals)
    chat = {"account": "tg", "message": "1", "place": "{}"}
    turn = await gateway.turns.accept(replace(message(), **chat))
    await asked(gateway, turn)
    ((state, text),) = await to_say(gateway)
    assert (state, text.startswith(before), text.endswith("Answer yes or no.")) == ("pending", True, True)

    if how == "cancelled":
        await gateway.turns.cancel("gateway", turn.id)
    elif how == "decided":
        await decide(gateway, turn, YES)
    else:
        watch.now += timedelta(hours=2)
        hours.put_nowait(None)
    await gateway.turns.ended(turn)

    (first, *behind) = await to_say(gateway)
    assert first == (("pending", before) if before else ("dropped", text))
    assert behind == ([] if how == "cancelled" else [("pending", "Done.")])


async def test_a_stop_does_not_wait_for_who_waits_for_a_yes(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    (first,) = await asked(gateway, turn)

    async with asyncio.timeout(5):
        await gateway.turns.stop(grace=1000)

    gateway.database.close()
    gateway = await boot(ScriptedModel("Done."), desk.toolset())
    assert await asked(gateway, turn) == [first]
    assert (await gateway.turns.get("gateway", turn.id)).crashes == 0


async def test_questions_are_listed_page_by_page_the_newest_first(
    boot: Boot, desk: Desk, message: Message
) -> None:
    calls = [pay(number, id_=f"c{number}") for number in range(5)]
    gateway = await boot(ScriptedModel(calls), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn, 5)
    listed: list[str] = []
    after: str | None = None
    while True:
        page = await gateway.turns.approvals.listed("*", limit=2, after=after)
        listed += [one.call_id for one in page.items]
        after = page.next
        if after is None:
            break

    assert listed == ["c4", "c3", "c2", "c1", "c0"]
    assert (await gateway.turns.approvals.listed("user:ana", limit=9)).items == []


@pytest.mark.parametrize(("asked_with", "said_with"), [(None, "tok_a"), ("tok_a", None), ("tok_a", "tok_b")])
async def test_a_yes_of_nobody_by_name_counts_with_the_same_token_alone(
    boot: Boot, desk: Desk, message: Message, asked_with: str | None, said_with: str | None
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Paid."), desk.toolset())
    turn = await gateway.turns.accept(message(token=asked_with))
    await asked(gateway, turn)

    other = await gateway.turns.accept(message("yes", token=said_with))

    assert (other.state, desk.done) == ("queued", [])
    await gateway.turns.cancel("gateway", other.id)
    assert (await gateway.turns.accept(message("yes", token=asked_with))).state == "completed"
    assert (await gateway.turns.ended(turn)).reply == "Paid."


async def test_what_was_scheduled_is_nobodys_yes(boot: Boot, desk: Desk, message: Message) -> None:
    gateway = await boot(ScriptedModel([pay()], "paid", "hello"), desk.toolset())
    turn = await gateway.turns.accept(message("pay ana"))
    await asked(gateway, turn)

    def fires(_connection: Connection, _turn: Turn) -> None: ...

    fired = await gateway.turns.submit(message("yes"), also=fires)

    assert (fired.turn.state, await states(gateway), desk.done) == ("queued", ["open"], [])
    await gateway.turns.accept(message("yes"))  # of the one who was asked
    await gateway.turns.ended(fired.turn)
    assert desk.done == ["5 to ana"]


async def until_shown(gateway: Any, turn: Turn, amount: int) -> Approval:
    """The turn's one open approval, once it is that of the payment of this amount, sent to an event stream."""
    while [one.arguments["amount"] for one in await gateway.turns.approvals.open_of("*", turn.id)] != [amount]:
        await gateway.look()
    (approval,) = await gateway.turns.approvals.open_of("*", turn.id)
    gateway.turns.approvals.note_streamed(approval.id)
    return approval


async def word(gateway: Any, message: Message, content: str = "yes") -> str:
    """The reply to a word over HTTP."""
    return (await gateway.turns.accept(message(content))).reply or ""


def question(amount: int) -> str:
    return question_text("pay", {"amount": amount, "to": "ana"})


async def test_approval_is_decided_by_its_id_and_the_digest_of_the_call(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    (told,) = await asked(gateway, turn)
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
    await gateway.turns.ended(turn)
    assert (desk.done, first.state) == (["5 to ana"], "approved")
    assert await approvals.decide_by_id("gateway", told["id"], yes, act) == first
    with pytest.raises(AlreadyDecided):
        await approvals.decide_by_id("gateway", told["id"], NO, act)


async def test_provider_that_repeats_call_ids_has_each_call_decided_for_itself(
    boot: Boot, desk: Desk, message: Message
) -> None:
    """Also across a crash: the ids of settled calls are not given again."""
    gateway = await boot(ScriptedModel([pay(1), pay(2)], [pay(3)]), desk.toolset())
    turn = await gateway.turns.accept(message())
    first = [one["callId"] for one in await asked(gateway, turn, 2)]
    for call_id in first:
        await decide(gateway, turn, YES, call_id)
    await until_shown(gateway, turn, 3)
    await gateway.crash()
    gateway = await boot(ScriptedModel([pay(4)], "Done."), desk.toolset())
    (third,) = [one["callId"] for one in await asked(gateway, turn)]

    assert (await decide(gateway, turn, YES, first[0])).arguments["amount"] == 1
    assert desk.done == ["1 to ana", "2 to ana"]
    await decide(gateway, turn, YES, third)
    fourth = (await until_shown(gateway, turn, 4)).call_id
    await decide(gateway, turn, YES, fourth)
    await gateway.turns.ended(turn)

    assert first[0] == "c1"
    assert len({*first, third, fourth}) == 4
    assert desk.done == ["1 to ana", "2 to ana", "3 to ana", "4 to ana"]


async def test_calls_of_one_id_from_before_ids_were_unique_are_decided_by_approval_id(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(1, id_="a"), pay(2, id_="b")], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    told = await asked(gateway, turn, 2)
    table = tables.approvals

    def rename(connection: Connection) -> None:
        connection.execute(sa.update(table).values(call_id="odd\n/..", step=sa.text("rowid")))

    await gateway.database.run(rename)

    with pytest.raises(ApprovalChanged, match=told[1]["id"]):
        await decide(gateway, turn, YES, "odd\n/..")
    act = Act(principal="operator", source="test", at=BEGIN)
    await gateway.turns.approvals.decide_by_id("gateway", told[1]["id"], YES, act)
    assert await states(gateway) == ["open", "approved"]


async def test_question_that_is_open_again_is_not_decided_by_its_former_id(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    (former,) = await gateway.turns.approvals.open_of("gateway", turn.id)

    def ask_anew(connection: Connection) -> tuple[Approval, bool]:
        rows.withdraw(connection, turn.id, BEGIN)
        rows.ask(connection, replace(former, id="apr_2"))
        return rows.decide(connection, former, Verdict(state="approved", at=BEGIN, by="operator"))

    found, decided = await gateway.database.run(ask_anew)

    assert (found.id, found.state, decided) == ("apr_2", "open", False)


async def test_decision_does_not_hold_for_another_call_in_the_same_place(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(1)], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn)
    (former,) = await gateway.turns.approvals.open_of("gateway", turn.id)
    await decide(gateway, turn, YES)
    other = replace(former, id="apr_2", arguments={"amount": 2, "to": "ana"})

    found = await gateway.database.run(partial(rows.ask, asked=other))

    assert (found.id, found.state) == ("apr_2", "open")
    same = replace(other, id="apr_3")
    assert (await gateway.database.run(partial(rows.ask, asked=same))).id == "apr_2"


async def test_word_over_http_has_a_question_put_that_was_not_shown_and_the_next_word_answers_it(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay()], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    while not await gateway.turns.approvals.open_of("*", turn.id):
        await gateway.look()

    assert (await word(gateway, message)).endswith(question(5))
    assert desk.done == []
    assert await word(gateway, message) == "I run `pay`."

    assert (await gateway.turns.ended(turn)).reply == "Done."
    assert desk.done == ["5 to ana"]


async def test_word_over_http_answers_no_question_that_replaced_the_shown_one(
    boot: Boot, desk: Desk, message: Message
) -> None:
    """The first is decided elsewhere, also while the word's reply puts it."""
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
    await gateway.turns.ended(turn)
    assert desk.done == ["1 to ana"]


async def test_word_that_is_sent_twice_over_http_answers_one_question(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(1, id_="a")], [pay(2, id_="b")]), desk.toolset())
    turn = await gateway.turns.accept(message())
    await until_shown(gateway, turn, 1)
    assert await word(gateway, message) == "I run `pay`."
    await until_shown(gateway, turn, 2)

    assert (await word(gateway, message)).endswith(question(2))

    assert desk.done == ["1 to ana"]


async def test_words_over_http_answer_several_questions_one_by_one(
    boot: Boot, desk: Desk, message: Message
) -> None:
    gateway = await boot(ScriptedModel([pay(1, id_="a"), pay(2, id_="b")], "Done."), desk.toolset())
    turn = await gateway.turns.accept(message())
    await asked(gateway, turn, 2)

    replies = [await word(gateway, message, content) for content in ("yes", "yes", "no")]
    await gateway.turns.ended(turn)

    assert replies[0].endswith(question(1))
    assert replies[1] == f"I run `pay`.\n\n{question(2)}"
    assert replies[2] == "I do not run `pay`."
    assert desk.done == ["1 to ana"]


async def test_word_over_http_tells_calls_apart_that_differ_where_the_question_is_cut(
    boot: Boot, desk: Desk, message: Message
) -> None:
    """The question that the reply put is decided elsewhere; the next one begins like it."""
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

    assert (await word(gateway, message)).startswith("I do not count that")
    assert desk.done == []
