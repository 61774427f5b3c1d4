"""A resumed turn continues after its settled steps; no request or call is repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai import FunctionToolset
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import (
    ModelMessage,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)

from torana.agent.journal_hooks import UNKNOWN_OUTCOME
from torana.errors import StoreUnavailable
from torana.messages import Inbound, Turn
from torana.sessions import history
from torana.store.engine import tables
from torana.store.rows import journal as rows
from torana.store.rows.transcript import newest
from torana.testing import ScriptedModel
from torana.testing.scripted import Piece
from torana.tools import ToolContext, ToolError
from torana.turns.journal import settled_text

Message = Callable[..., Inbound]
Boot = Callable[..., Awaitable[Any]]


@dataclass
class Workshop:
    """Tools that can hang, and a record of the calls that ran."""

    done: list[str] = field(default_factory=list[str])
    hangs: set[str] = field(default_factory=set[str])
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, line: str) -> str:
        """Write a line; two calls write two lines."""
        return await self._do(line)

    async def put(self, line: str) -> str:
        """Put a line; a second call changes nothing."""
        return await self._do(line)

    async def fail(self) -> str:
        """Fail."""
        self.done.append("fail")
        raise ToolError("there is no more paper")

    async def again(self) -> str:
        """Ask for another call."""
        self.done.append("again")
        raise ModelRetry("say it in other words")

    async def count(self) -> dict[str, Any]:
        """Return a result of many types."""
        self.done.append("count")
        return {"lines": [1, 2.5, None, True], "name": "é"}

    async def nested(self) -> list[Any]:
        """Return a list with more levels than parsers of JSON read."""
        value: list[Any] = []
        for _ in range(220):
            value = [value]
        return value

    async def wrapped(self) -> ToolReturn[str]:
        """Return a result with additional content."""
        self.done.append("wrapped")
        return ToolReturn("the result", content="beside it", metadata={"a": 1})

    async def _do(self, line: str) -> str:
        self.done.append(line)
        if line in self.hangs:
            self.hangs.remove(line)
            self.reached.set()
            await asyncio.Event().wait()
        return f"{line} is written"

    def toolset(self) -> FunctionToolset[ToolContext]:
        tools = FunctionToolset[ToolContext]()
        functions: list[Callable[..., Any]] = [
            self.write,
            self.put,
            self.fail,
            self.again,
            self.count,
            self.nested,
            self.wrapped,
        ]
        for function in functions:
            metadata = {"idempotent": function == self.put, "permission": "allow"}
            tools.add_function(function, metadata=metadata)
        return tools


@pytest.fixture
def shop() -> Workshop:
    return Workshop()


def call(tool: str, line: str | None = None, id_: str | None = None) -> ToolCallPart:
    return ToolCallPart(tool, {} if line is None else {"line": line}, tool_call_id=id_ or f"{tool}-{line}")


def returned(messages: Sequence[ModelMessage]) -> dict[str, object]:
    """Return the tool results that the model received, by call."""
    parts = [part for message in messages for part in message.parts]
    return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}


def plain(messages: Sequence[ModelMessage]) -> list[list[tuple[str, object]]]:
    """Return messages without the parts that differ between runs."""
    return [[_plain(part) for part in message.parts] for message in messages]


def _plain(part: Any) -> tuple[str, object]:
    if isinstance(part, ToolCallPart):
        return part.tool_name, part.args_as_dict()
    return type(part).__name__, part.content


async def stored_history(gateway: Any, turn: Turn) -> list[ModelMessage]:
    """Return the history that the turn stored."""
    work = partial(newest, owner=turn.owner, session_id=turn.session_id, turns_limit=1)
    ((_, body, _),) = (await gateway.database.run(work)).history
    return history.load(body)


async def journal_rows(gateway: Any) -> tuple[int, int]:
    def count(connection: sa.Connection) -> tuple[int, int]:
        steps, calls = (
            connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (tables.steps, tables.calls)
        )
        return steps, calls

    return await gateway.database.run(count)


def remove_texts(connection: sa.Connection) -> None:
    """Make the steps as an older version stored them."""
    connection.execute(sa.update(tables.steps).values(text=None))


async def crash_at(shop: Workshop, gateway: Any, inbound: Inbound, line: str) -> Turn:
    """Run a turn until a tool hangs on ``line``, and crash the gateway there."""
    shop.hangs.add(line)
    shop.reached.clear()
    turn = await gateway.turns.accept(inbound)
    await shop.reached.wait()
    await gateway.crash()
    return turn


async def test_cut_off_call_is_not_repeated_and_reports_unknown_outcome(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    before = await boot(ScriptedModel(["I begin. ", call("write", "a")]), shop.toolset())
    turn = await crash_at(shop, before, message(), "a")

    after = await boot(ScriptedModel("It may be there."), shop.toolset())
    ended = await after.turns.reader.wait_for_end(turn)

    assert shop.done == ["a"]
    assert ended.reply == "I begin. \n\nIt may be there."
    (asked,) = after.model.requests
    assert returned(asked.messages) == {"write-a": UNKNOWN_OUTCOME}
    assert await journal_rows(after) == (0, 0)


async def test_cut_off_idempotent_call_runs_again(boot: Boot, shop: Workshop, message: Message) -> None:
    before = await boot(ScriptedModel([call("put", "a")]), shop.toolset())
    turn = await crash_at(shop, before, message(), "a")

    after = await boot(ScriptedModel("done"), shop.toolset())

    assert (await after.turns.reader.wait_for_end(turn)).reply == "done"
    assert shop.done == ["a", "a"]
    assert returned(after.model.requests[0].messages) == {"put-a": "a is written"}


async def test_settled_calls_and_responses_are_replayed(boot: Boot, shop: Workshop, message: Message) -> None:
    before = await boot(
        ScriptedModel([call("write", "a")], [call("count")], [call("write", "b")]), shop.toolset()
    )
    turn = await crash_at(shop, before, message(), "b")

    after = await boot(ScriptedModel([call("write", "c")], "done"), shop.toolset())

    assert (await after.turns.reader.wait_for_end(turn)).reply == "done"
    assert shop.done == ["a", "count", "b", "c"]
    assert returned(after.model.requests[0].messages) == {
        "write-a": "a is written",
        "count-None": {"lines": [1, 2.5, None, True], "name": "é"},
        "write-b": UNKNOWN_OUTCOME,
    }


async def test_parallel_calls_are_resumed_by_their_own_state(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    at_once: list[Piece] = [call("put", "a"), call("write", "b"), call("write", "c"), call("fail")]
    before = await boot(ScriptedModel(at_once), shop.toolset())
    shop.hangs |= {"a", "c"}
    turn = await before.turns.accept(message())
    ended = 0
    async for event in before.turns.reader.events(turn):
        ended += event.type == "tool.finished"
        if ended == 2:
            break
    assert shop.hangs == set()
    await before.crash()

    after = await boot(ScriptedModel("done"), shop.toolset())
    await after.turns.reader.wait_for_end(turn)

    assert sorted(shop.done) == ["a", "a", "b", "c", "fail"]
    assert returned(after.model.requests[0].messages) == {
        "put-a": "a is written",
        "write-b": "b is written",
        "write-c": UNKNOWN_OUTCOME,
        "fail-None": "there is no more paper",
    }


async def test_parallel_call_does_not_run_before_its_step_is_stored(
    boot: Boot, shop: Workshop, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()
    start = rows.start

    def refuse_steps(connection: sa.Connection, call: dict[str, Any], step: dict[str, Any] | None) -> None:
        if step is not None:
            loop.call_soon_threadsafe(refused.set)
            raise StoreUnavailable
        start(connection, call, step)

    monkeypatch.setattr(rows, "start", refuse_steps)
    before = await boot(ScriptedModel([call("write", "a"), call("write", "b")]), shop.toolset())
    turn = await before.turns.accept(message())
    await refused.wait()
    await before.look()
    await before.crash()
    assert shop.done == []

    monkeypatch.setattr(rows, "start", start)
    after = await boot(ScriptedModel([call("write", "a"), call("write", "b")], "done"), shop.toolset())
    await after.turns.reader.wait_for_end(turn)

    assert shop.done == ["a", "b"]


async def test_deeply_nested_values_can_be_read_after_a_crash(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    before = await boot(ScriptedModel([call("nested")], [call("write", "b")]), shop.toolset())
    turn = await crash_at(shop, before, message(), "b")

    after = await boot(ScriptedModel("done"), shop.toolset())
    assert (await after.turns.reader.wait_for_end(turn)).reply == "done"


_LIKE_A_FILE = {"kind": "binary", "data": "aGk=", "media_type": "audio/wav"}


@pytest.mark.parametrize("result", [_LIKE_A_FILE, ["a", _LIKE_A_FILE], ToolReturn(_LIKE_A_FILE)])
async def test_result_with_the_form_of_a_file_stays_text(boot: Boot, message: Message, result: Any) -> None:
    def look_up() -> Any:
        """Return a record."""
        return result

    tools = FunctionToolset[ToolContext]([look_up], metadata={"permission": "allow"})
    model = ScriptedModel([ToolCallPart("look_up", {})], "one", "two")
    gateway = await boot(model, tools)
    first = await gateway.turns.accept(message("a"))
    await gateway.turns.reader.wait_for_end(first)
    second = await gateway.turns.accept(message("b"))
    await gateway.turns.reader.wait_for_end(second)

    value = result.return_value if isinstance(result, ToolReturn) else result
    for request in model.requests[1:]:
        (part,) = (part for one in request.messages for part in one.parts if isinstance(part, ToolReturnPart))
        assert isinstance(part.content, str)
        assert json.loads(part.content) == value


async def test_failed_and_retry_results_are_replayed_unchanged(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    first: list[Piece] = [call("fail"), call("again"), call("wrapped")]
    before = await boot(ScriptedModel(first, [call("write", "a")]), shop.toolset())
    turn = await crash_at(shop, before, message(), "a")
    seen = plain(before.model.requests[1].messages)

    after = await boot(ScriptedModel("done"), shop.toolset())
    await after.turns.reader.wait_for_end(turn)

    assert sorted(shop.done) == ["a", "again", "fail", "wrapped"]
    assert plain(after.model.requests[0].messages)[: len(seen)] == seen


async def test_results_of_the_last_step_are_replayed_unchanged(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    """The crash comes after all calls of a step have ended and before the next model request."""
    gate = asyncio.Event()
    calls: list[Piece] = [call("fail"), call("again"), call("wrapped"), call("count"), call("nonsense")]
    before = await boot(ScriptedModel(calls, [gate]), shop.toolset())
    turn = await before.turns.accept(message())
    await before.until_asked(2)
    seen = plain(before.model.requests[1].messages)
    await before.crash()

    after = await boot(ScriptedModel("done"), shop.toolset())
    await after.turns.reader.wait_for_end(turn)

    assert sorted(shop.done) == ["again", "count", "fail", "wrapped"]
    assert plain(after.model.requests[0].messages) == seen


async def test_repeated_crashes_repeat_no_call(boot: Boot, shop: Workshop, message: Message) -> None:
    gateway = await boot(ScriptedModel(["One. ", call("write", "0")]), shop.toolset())
    turn = await crash_at(shop, gateway, message(), "0")
    for number in range(1, 6):
        shop.hangs.add(str(number))
        shop.reached.clear()
        gateway = await boot(ScriptedModel([call("write", str(number))]), shop.toolset(), max_crashes=99)
        await shop.reached.wait()
        assert len(gateway.model.requests) == 1
        await gateway.crash()

    last = await boot(ScriptedModel("Two."), shop.toolset(), max_crashes=99)
    ended = await last.turns.reader.wait_for_end(turn)

    assert shop.done == ["0", "1", "2", "3", "4", "5"]
    # A tool that was cut off may have caused the crash: its step is not settled.
    assert (ended.reply, ended.attempt, ended.crashes) == ("One. \n\nTwo.", 7, 6)
    assert returned(last.model.requests[0].messages) == {f"write-{n}": UNKNOWN_OUTCOME for n in range(6)}


async def test_crash_before_the_first_step_restarts_the_turn(boot: Boot, message: Message) -> None:
    before = await boot(ScriptedModel(["I was about to", asyncio.Event()]))
    turn = await before.turns.accept(message("hello"))
    async for event in before.turns.reader.events(turn):
        if event.type == "message.delta":
            break
    await before.crash()

    after = await boot(ScriptedModel("say this"))
    events = await after.watch(turn, after="1-2")

    assert [(event.id, event.type) for event in events] == [
        ("2-1", "turn.resumed"),
        ("2-2", "message.delta"),
        ("2-3", "turn.completed"),
    ]
    assert events[0].data == {"attempt": 2, "text": ""}
    assert (await after.turns.reader.wait_for_end(turn)).reply == "say this"


@pytest.mark.parametrize("older", [False, True], ids=["stored", "of an older version"])
async def test_settled_text_joins_the_texts_of_all_responses(
    boot: Boot, shop: Workshop, message: Message, older: bool
) -> None:
    responses: list[list[Piece]] = [
        ["One", call("write", "a")],
        [call("write", "b")],
        ["Ünd\0", call("write", "c")],
    ]
    before = await boot(ScriptedModel(*responses, [call("write", "d")]), shop.toolset())
    turn = await crash_at(shop, before, message(), "d")

    after = await boot(ScriptedModel([asyncio.Event()]), shop.toolset())
    if older:
        await after.database.run(remove_texts)

    assert await after.database.run(partial(settled_text, turn=turn)) == "One\n\nÜnd\0"


async def test_reply_joins_settled_text_and_later_text(boot: Boot, shop: Workshop, message: Message) -> None:
    before = await boot(
        ScriptedModel(["Let ", "me see.", call("write", "a")], [call("count")], ["Now.", call("write", "b")]),
        shop.toolset(),
    )
    turn = await crash_at(shop, before, message(), "b")

    after = await boot(ScriptedModel(["It ", "is so."]), shop.toolset())
    events = await after.watch(turn, after="1-3")
    ended = await after.turns.reader.wait_for_end(turn)

    assert (events[0].id, events[0].type) == ("2-1", "turn.resumed")
    assert events[0].data == {"attempt": 2, "text": "Let me see.\n\nNow."}
    deltas = [event.data["text"] for event in events if event.type == "message.delta"]
    assert events[0].data["text"] + "".join(deltas) == ended.reply == "Let me see.\n\nNow.\n\nIt is so."
    assert [event.id for event in events] == [f"2-{n}" for n in range(1, len(events) + 1)]
    assert await after.watch(turn, after=events[1].id) == events[2:]


SCRIPT: list[list[Piece]] = [
    ["First. ", call("write", "a"), call("count")],
    [call("fail")],
    ["Then. ", call("put", "b")],
    ["Last."],
]


async def test_resumed_turn_stores_the_same_history_as_an_uninterrupted_one(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    whole = await boot(ScriptedModel(*SCRIPT), shop.toolset())
    undisturbed = await whole.turns.reader.wait_for_end(
        await whole.turns.accept(message(channel="a", user="ana"))
    )
    model = ScriptedModel(*SCRIPT[:3])
    before = await boot(model, shop.toolset())
    turn = await crash_at(shop, before, message(channel="b", user="ana"), "b")
    after = await boot(ScriptedModel(*SCRIPT[3:]), shop.toolset())
    resumed = await after.turns.reader.wait_for_end(turn)

    assert (resumed.reply, resumed.usage, resumed.model) == (
        undisturbed.reply,
        undisturbed.usage,
        undisturbed.model,
    )
    first, second = await stored_history(after, undisturbed), await stored_history(after, resumed)
    assert plain(first) == plain(second)
    assert [message.metadata for message in first] == [message.metadata for message in second]


async def test_model_sees_the_same_messages_after_a_crash(boot: Boot, shop: Workshop, message: Message) -> None:
    first = await boot(ScriptedModel("I am Torana."), shop.toolset())
    await first.turns.reader.wait_for_end(await first.turns.accept(message("who are you?")))
    gate = asyncio.Event()
    before = await boot(ScriptedModel([call("write", "a")], [gate]), shop.toolset())
    turn = await before.turns.accept(message("write a"))
    await before.until_asked(2)
    await before.crash()
    after = await boot(ScriptedModel("done"), shop.toolset())
    await after.turns.reader.wait_for_end(turn)

    assert plain(after.model.requests[0].messages) == plain(before.model.requests[1].messages)
    assert plain(after.model.requests[0].messages[:2]) == [
        [("UserPromptPart", "who are you?")],
        [("TextPart", "I am Torana.")],
    ]


async def test_empty_response_does_not_shift_the_journal(boot: Boot, shop: Workshop, message: Message) -> None:
    before = await boot(ScriptedModel([call("write", "a")], [""], [call("write", "b")]), shop.toolset())
    turn = await crash_at(shop, before, message(), "b")

    after = await boot(ScriptedModel([call("write", "c")], "done"), shop.toolset())

    assert (await after.turns.reader.wait_for_end(turn)).reply == "done"
    assert shop.done == ["a", "b", "c"]
    assert returned(after.model.requests[0].messages) == {"write-a": "a is written", "write-b": UNKNOWN_OUTCOME}


async def test_equal_call_ids_in_two_steps_are_two_calls(boot: Boot, shop: Workshop, message: Message) -> None:
    before = await boot(
        ScriptedModel([call("write", "a", "same")], [call("write", "b", "same")]), shop.toolset()
    )
    turn = await crash_at(shop, before, message(), "b")

    after = await boot(ScriptedModel([call("write", "c", "same")], "done"), shop.toolset())
    await after.turns.reader.wait_for_end(turn)

    assert shop.done == ["a", "b", "c"]


async def test_retried_turn_continues_after_its_journal(boot: Boot, shop: Workshop, message: Message) -> None:
    gateway = await boot(
        ScriptedModel(["Begun. ", call("write", "a")], [LookupError("a bug")], "Done."), shop.toolset()
    )
    failed = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message()))
    assert failed.state == "failed"

    again = await gateway.turns.retry("gateway", failed.id)
    events = await gateway.watch(again, after="1-3")
    ended = await gateway.turns.reader.wait_for_end(again)

    assert (ended.state, ended.reply, ended.failure, ended.attempt) == (
        "completed",
        "Begun. \n\nDone.",
        None,
        2,
    )
    assert (ended.id, ended.seq) == (failed.id, 2)
    assert shop.done == ["a"]
    assert (events[0].type, events[0].data) == ("turn.resumed", {"attempt": 2, "text": "Begun. "})
    assert await journal_rows(gateway) == (0, 0)


async def test_retry_does_not_repeat_a_call_cut_off_by_a_timeout(
    boot: Boot, shop: Workshop, message: Message, open_turns: Any, open_agent: Any
) -> None:
    shop.hangs.add("a")
    model = ScriptedModel([call("write", "a")], "done")
    agent = open_agent(model, shop.toolset())
    hasty = open_turns(agent=agent, turn_timeout=0.5)
    failed = await hasty.reader.wait_for_end(await hasty.accept(message()))
    assert failed.failure is not None
    assert failed.failure.code == "turn_timeout"

    turns = open_turns(agent=agent)
    ended = await turns.reader.wait_for_end(await turns.retry("gateway", failed.id))

    assert (ended.reply, shop.done) == ("done", ["a"])
    assert returned(model.requests[1].messages) == {"write-a": UNKNOWN_OUTCOME}


def texts_of(messages: Sequence[ModelMessage]) -> list[object]:
    """Return the texts of users and of the model."""
    return [
        part.content
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart | TextPart)
    ]


async def test_steering_message_survives_crashes_before_and_after_it_is_read(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    before = await boot(ScriptedModel([call("write", "a")]), shop.toolset())
    shop.hangs.add("a")
    turn = await before.turns.accept(message("go"))
    await shop.reached.wait()
    steer = await before.turns.accept(message("and hurry", on_busy="steer"))
    await before.crash()

    middle = await boot(ScriptedModel([call("write", "b")]), shop.toolset())
    shop.hangs.add("b")
    shop.reached.clear()
    await shop.reached.wait()
    assert texts_of(middle.model.requests[0].messages) == ["go", "and hurry"]
    await middle.crash()

    last = await boot(ScriptedModel("done"), shop.toolset())
    ended, merged = [await last.turns.reader.wait_for_end(one) for one in (turn, steer)]

    assert texts_of(last.model.requests[0].messages) == ["go", "and hurry"]
    assert (ended.reply, merged.reply, merged.merged_into) == ("done", "done", turn.id)
    assert texts_of(await stored_history(last, turn)) == ["go", "and hurry", "done"]


async def test_steering_message_of_an_unsettled_step_is_sent_again(
    boot: Boot, shop: Workshop, message: Message
) -> None:
    """The crash comes while the model answers: the step that took the message is not settled."""
    gate = asyncio.Event()
    before = await boot(ScriptedModel([gate, call("count")], [asyncio.Event()]), shop.toolset())
    turn = await before.turns.accept(message("go"))
    await before.turns.accept(message("and hurry", on_busy="steer"))
    gate.set()
    await before.until_asked(2)
    assert texts_of(before.model.requests[1].messages) == ["go", "and hurry"]
    await before.crash()

    after = await boot(ScriptedModel("done"), shop.toolset())
    await after.turns.reader.wait_for_end(turn)

    assert texts_of(after.model.requests[0].messages) == ["go", "and hurry"]
