"""One turn of the agent over a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from torana.agent import Answer, Bounds, TurnAgent
from torana.agent.approval import ApprovalDecision, Question
from torana.agent.journal import Call, Step
from torana.errors import ModelFailed, ModelResponseTooLarge, StoreUnavailable, TurnLimit
from torana.limits.request_tokens import RequestTokens
from torana.memory import Memory
from torana.messages import NOTE_MARK, EventType, Inbound, Turn, Usage
from torana.sessions import HistoryWindow, Sessions, history
from torana.store.engine.database import Database
from torana.testing import Asked, ScriptedModel
from torana.tools import ToolContext
from torana.turns import Turns
from torana.turns.timings import RequestTime

OpenAgent = Callable[..., TurnAgent]
Say = Callable[..., Awaitable[Turn]]


class Watcher:
    """Collects the events of a turn."""

    def __init__(self) -> None:
        self.events: list[tuple[EventType, Mapping[str, Any]]] = []

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        self.events.append((type_, data))

    @property
    def text(self) -> str:
        return "".join(data["text"] for type_, data in self.events if type_ == "message.delta")

    @property
    def tools(self) -> list[tuple[EventType, Mapping[str, Any]]]:
        return [event for event in self.events if event[0].startswith("tool.")]


class Unwritten:
    """A journal that stores nothing."""

    steps: Sequence[Step] = ()

    def call(self, step: int, call_id: str) -> Call | None:
        return None

    async def steers(self, step: int) -> Sequence[Turn]:
        return ()

    async def settle(self, step: Step) -> None:
        pass

    async def start(self, call: Call, step: Step | None) -> None:
        pass

    async def finish(self, call: Call) -> None:
        pass

    async def ask(self, question: Question, step: Step | None) -> ApprovalDecision:
        return ApprovalDecision(approved=False)

    def leave(self, *, owed: Usage, asking: bool, unsaid: int = 0) -> None:
        self.owed, self.was_asking = owed, asking

    async def hold(self, request: RequestTokens) -> None:
        pass

    def request(self, step: int) -> AbstractContextManager[RequestTime]:
        return nullcontext(RequestTime())

    def check_budgets(self) -> None:
        pass


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
async def turn(open_turns: Callable[..., Turns], message: Callable[..., Inbound]) -> Turn:
    """A turn of ana that waits for its reply."""
    return await open_turns(ScriptedModel([asyncio.Event()])).accept(message("what is 1+1?", user="ana"))


def call(name: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(name, arguments, tool_call_id=f"call_{name}")


def sum_of(number: int) -> ToolCallPart:
    return ToolCallPart("calculate", {"expression": f"{number}+{number}"}, tool_call_id=f"c{number}")


async def test_deltas_concatenate_to_the_reply(open_agent: OpenAgent, turn: Turn, watcher: Watcher) -> None:
    model = ScriptedModel(["Let me ", "see.", sum_of(1)], [sum_of(2)], ["It ", "is 2."])

    answer = await open_agent(model).run(turn, watcher, Unwritten())

    assert answer.reply == watcher.text == "Let me see.\n\nIt is 2."
    assert answer.model == "scripted"


async def test_turn_waits_for_a_database_that_cannot_be_read(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = Sessions.window, [StoreUnavailable()]

    async def window(sessions: Sessions, turn: Turn) -> HistoryWindow:
        if failures:
            raise failures.pop()
        return await read(sessions, turn)

    monkeypatch.setattr(Sessions, "window", window)
    answer = await open_agent(ScriptedModel("hello")).run(turn, watcher, Unwritten())

    assert (answer.reply, failures) == ("hello", [])


async def test_text_after_an_empty_piece_starts_a_new_paragraph(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher
) -> None:
    model = ScriptedModel(["One.", sum_of(1)], ["", "Two."], "never")

    answer = await open_agent(model).run(turn, watcher, Unwritten())

    assert answer.reply == watcher.text == "One.\n\nTwo."


async def test_tool_events_are_emitted_in_order(open_agent: OpenAgent, turn: Turn, watcher: Watcher) -> None:
    model = ScriptedModel([sum_of(1), call("calculate", expression="1/0")], "Done.")

    await open_agent(model).run(turn, watcher, Unwritten())

    started = [data for type_, data in watcher.tools if type_ == "tool.started"]
    finished = [data for type_, data in watcher.tools if type_ == "tool.finished"]
    assert started == [{"callId": "c1", "tool": "calculate"}, {"callId": "call_calculate", "tool": "calculate"}]
    assert sorted(finished, key=lambda data: data["callId"]) == [
        {"callId": "c1", "tool": "calculate", "ok": True},
        {"callId": "call_calculate", "tool": "calculate", "ok": False},
    ]


async def test_call_has_one_id_in_events_history_and_the_next_request(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher
) -> None:
    odd = ToolCallPart("calculate", {"expression": "1+1"}, tool_call_id="call\n0")
    model = ScriptedModel([odd, odd], [odd], "Done.")

    answer = await open_agent(model).run(turn, watcher, Unwritten())

    def calls_and_results(messages: Sequence[ModelMessage]) -> list[str]:
        parts = [part for message in messages for part in message.parts]
        return [part.tool_call_id for part in parts if isinstance(part, ToolCallPart | ToolReturnPart)]

    started = [data["callId"] for type_, data in watcher.tools if type_ == "tool.started"]
    assert len(set(started)) == 3
    assert all(id_.isalnum() for id_ in started)
    assert sorted(calls_and_results(model.requests[-1].messages)) == sorted(started * 2)
    assert sorted(calls_and_results(history.load(answer.history[0]))) == sorted(started * 2)
    assert sorted(data["callId"] for type_, data in watcher.tools if type_ == "tool.finished") == sorted(
        started
    )


@pytest.mark.parametrize(
    "wrong", [call("no_such_tool"), call("calculate", wrong=1), call("calculate", expression=["x"])], ids=str
)
async def test_invalid_call_is_reported_to_the_model_and_in_events(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher, wrong: ToolCallPart
) -> None:
    model = ScriptedModel([wrong], [wrong], [wrong], "I give up.")

    answer = await open_agent(model).run(turn, watcher, Unwritten())

    assert answer.reply == "I give up."
    assert [data["ok"] for type_, data in watcher.tools if type_ == "tool.finished"] == [False, False, False]


@pytest.mark.parametrize(
    "wrong",
    [
        call("pick_random", options=[1] * 5_000),
        call("calculate", expression={"x": "y" * 100_000}),
        call("calculate", **{f"a{number}": "y" * 1_000 for number in range(100)}),
        ToolCallPart("calculate", '{"expression": ' + "[" * 100_000, tool_call_id="c"),
    ],
    ids=["values", "text", "names", "no JSON"],
)
async def test_error_for_invalid_arguments_is_short(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher, wrong: ToolCallPart
) -> None:
    model = ScriptedModel([wrong], "I give up.")

    await open_agent(model).run(turn, watcher, Unwritten())

    (result,) = [part for part in model.requests[-1].messages[-1].parts if isinstance(part, ToolReturnPart)]
    assert result.outcome == "retried"
    assert 10 < len(result.model_response_str()) < 21_000


async def test_repeated_invalid_calls_fail_the_turn(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher
) -> None:
    model = ScriptedModel(*[[call("calculate", wrong=1)]] * 4)

    with pytest.raises(ModelFailed, match="calculate"):
        await open_agent(model).run(turn, watcher, Unwritten())


class Metered(FunctionModel):
    """A model that reports token usage."""

    def __init__(self, name: str) -> None:
        super().__init__(stream_function=self._play, model_name=name)
        self.called = False

    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if not self.called:
            self.called = True
            yield {0: DeltaToolCall("calculate", '{"expression": "1+1"}', tool_call_id="c")}
        else:
            yield "It is 2."


async def test_usage_is_the_sum_of_all_requests(open_turns: Callable[..., Turns], say: Say) -> None:
    ended = await say(open_turns(Metered("nobody-knows-it")))

    assert ended.usage.input_tokens > 50
    assert ended.usage.output_tokens > 5
    assert ended.usage.cost_usd == 0.0
    assert ended.model == "nobody-knows-it"


async def test_model_error_is_raised_with_its_status(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher
) -> None:
    model = ScriptedModel(
        ["a word, ", ModelHTTPError(status_code=500, model_name="m", body={"message": "oh no"})]
    )

    with pytest.raises(ModelFailed, match="500"):
        await open_agent(model).run(turn, watcher, Unwritten())

    assert watcher.text == "a word, "


class Endless(FunctionModel):
    """A model that calls a tool for ever, with this number of calls at once."""

    def __init__(self, at_once: int) -> None:
        super().__init__(stream_function=self._play)
        self._at_once = at_once
        self.requests = 0

    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        self.requests += 1
        for number in range(self._at_once):
            yield {number: DeltaToolCall("list_skills", "{}", tool_call_id=f"{self.requests}.{number}")}


@pytest.mark.parametrize(
    ("at_once", "requests", "what"),
    [
        (1, 50, "needed more than 50 model calls (TORANA_TURN_MODEL_CALLS)"),
        (101, 1, "needed more than 100 tool calls (TORANA_TURN_TOOL_CALLS)"),
        (60, 2, "needed more than 100 tool calls (TORANA_TURN_TOOL_CALLS)"),
    ],
)
async def test_turn_is_stopped_at_its_call_limits(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher, at_once: int, requests: int, what: str
) -> None:
    model = Endless(at_once)

    with pytest.raises(TurnLimit) as raised:
        await open_agent(model).run(turn, watcher, Unwritten())

    assert str(raised.value) == f"The turn {what}, and was stopped."
    assert model.requests == requests


async def test_turn_is_stopped_at_its_token_limit(open_agent: OpenAgent, turn: Turn, watcher: Watcher) -> None:
    agent = open_agent(ScriptedModel("a long answer " * 10), bounds=Bounds(tokens=10))

    with pytest.raises(TurnLimit, match=r"used more than 10 tokens \(TORANA_TURN_TOKENS\)"):
        await agent.run(turn, watcher, Unwritten())


async def test_endless_answer_is_stopped_at_the_token_limit(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher
) -> None:
    agent = open_agent(ScriptedModel(["a long answer " * 10, asyncio.Event()]), bounds=Bounds(tokens=10))

    with pytest.raises(TurnLimit, match="used more than 10 tokens"):
        await agent.run(turn, watcher, Unwritten())


async def test_turn_is_stopped_at_the_limit_of_its_text(
    open_agent: OpenAgent, turn: Turn, watcher: Watcher
) -> None:
    long = "ä" * 200
    model = ScriptedModel(*([long, sum_of(number)] for number in range(5)))

    with pytest.raises(ModelResponseTooLarge, match="together larger than 1000 bytes"):
        await open_agent(model, bounds=Bounds(reply_bytes=1_000)).run(turn, watcher, Unwritten())

    assert watcher.text == f"{long}\n\n{long}"


async def test_history_of_a_turn_holds_its_own_messages(open_turns: Callable[..., Turns], say: Say) -> None:
    model = ScriptedModel([sum_of(1)], "It is 2.", "And 4.")
    turns = open_turns(model)
    await say(turns, "what is 1+1?")
    await say(turns, "and doubled?")

    shown = model.requests[-1].messages
    assert [type(m) for m in shown] == [ModelRequest, ModelResponse, ModelRequest, ModelResponse, ModelRequest]
    parts = [m.parts[-1] for m in shown]
    assert isinstance(parts[2], ToolReturnPart)
    assert [p.content for p in parts if isinstance(p, UserPromptPart)] == ["what is 1+1?", "and doubled?"]


async def test_memories_of_the_user_reach_the_model(open_turns: Callable[..., Turns], say: Say) -> None:
    remember = ToolCallPart("remember", {"text": "Ana likes green tea", "subject": ""})
    model = ScriptedModel([remember], "Noted.", "Green tea.", "No idea.", "No idea.")
    turns = open_turns(model)
    await say(turns, "I like green tea, remember that", user="ana", channel="a")

    for user, knows in [("ana", True), ("bob", False), (None, False)]:
        await say(turns, "which tea?", user=user, channel=f"of {user}")
        assert ("Ana likes green tea" in prompt(model)) is knows


@pytest.mark.parametrize("recall_in_rooms", [False, True])
async def test_private_memory_is_hidden_in_shared_sessions_by_default(
    open_agent: OpenAgent,
    open_turns: Callable[..., Turns],
    say: Say,
    database: Database,
    recall_in_rooms: bool,
) -> None:
    await Memory(database=database).remember("ana", "Ana likes green tea", subject="", turn_id="t")
    model = ScriptedModel("Hello.", "Green tea.", [call("recall", query="tea")], "Here.")
    turns = open_turns(agent=open_agent(model, recall_in_rooms=recall_in_rooms))
    await say(turns, "hello", user="bob")

    await say(turns, "which tea?", user="ana")
    assert ("green tea" in prompt(model)) is recall_in_rooms
    await say(turns, "look it up", user="ana")

    result = model.requests[-1].messages[-1].parts[0]
    assert isinstance(result, ToolReturnPart)
    assert ("green tea" in str(result.content)) is recall_in_rooms
    assert (result.outcome == "failed") is not recall_in_rooms
    assert "the message above is from ana" in sent(model.requests[-1])


async def test_queued_message_of_another_user_makes_the_session_shared(
    open_turns: Callable[..., Turns], message: Callable[..., Inbound], database: Database
) -> None:
    await Memory(database=database).remember("ana", "Ana likes green tea", subject="", turn_id="t")
    model = ScriptedModel("a", "b")
    turns = open_turns(model)

    first, second = await asyncio.gather(
        turns.accept(message("which tea?", user="ana")), turns.accept(message("hello", user="bob"))
    )
    await turns.reader.wait_for_end(first)
    await turns.reader.wait_for_end(second)

    assert "green tea" not in sent(model.requests[0])


async def test_model_sees_speaker_names_in_a_shared_session(open_turns: Callable[..., Turns], say: Say) -> None:
    model = ScriptedModel("a", "b", "c")
    turns = open_turns(model)
    for content, user in [("I am here", "ana"), ("me too", "bob"), ("and I", "ana")]:
        await say(turns, content, user=user)

    prompts = [m.parts[0] for m in model.requests[-1].messages if isinstance(m, ModelRequest)]
    assert [p.content for p in prompts if isinstance(p, UserPromptPart)] == [
        "ana: I am here",
        "bob: me too",
        f"and I{NOTE_MARK}Several people write in this channel; the message above is from ana.",
    ]


def prompt(model: ScriptedModel) -> str:
    """Return the prompt of the last request."""
    part = model.requests[-1].messages[-1].parts[0]
    assert isinstance(part, UserPromptPart)
    return str(part.content)


def sent(request: Asked) -> str:
    """Return everything that a request contained."""
    return f"{request.info.instructions} {request.messages}"


async def test_tool_context_describes_the_turn(open_agent: OpenAgent, turn: Turn, watcher: Watcher) -> None:
    def who(ctx: RunContext[ToolContext]) -> str:
        """Describe the turn."""
        deps = ctx.deps
        return f"{deps.turn.user} in {deps.timezone.key} on {deps.clock():%A}, may recall: {deps.may_recall}"

    model: Model = ScriptedModel([call("who")], "Told.")
    answer: Answer = await open_agent(
        model, FunctionToolset[ToolContext]([who], metadata={"permission": "allow"})
    ).run(turn, watcher, Unwritten())

    assert b"ana in Europe/Lisbon on Monday, may recall: True" in answer.history[0]


@pytest.mark.parametrize("steps", range(60))
async def test_cancelled_run_leaves_no_task(
    open_agent: OpenAgent, open_turns: Callable[..., Turns], say: Say, watcher: Watcher, steps: int
) -> None:
    turn = await say(open_turns(ScriptedModel("It is 2.")))
    looked = asyncio.Event()
    toolset = FunctionToolset[ToolContext](metadata={"permission": "allow"})

    @toolset.tool_plain
    async def look() -> str:
        looked.set()
        return "seen"

    del look
    agent = open_agent(ScriptedModel([call("look")], ["It ", "is ", asyncio.Event()]), toolset)
    before = asyncio.all_tasks()
    run = asyncio.create_task(agent.run(turn, watcher, Unwritten()))
    await looked.wait()
    for _ in range(steps):
        await asyncio.sleep(0)

    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert asyncio.all_tasks() - before == set()
