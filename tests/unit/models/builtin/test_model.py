"""The builtin model in an agent loop with real tools."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, ModelRetry, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta, ToolFailed
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from torana.models.builtin import BuiltinModel
from torana.models.builtin.cards import Card
from torana.models.builtin.choice import Chooser
from torana.models.builtin.model import CHOOSERS_LIMIT, PIECES_LIMIT
from torana.models.builtin.readers import READERS


def calculate(expression: str) -> str:
    """Calculate."""
    if "/ 0" in expression:
        raise ToolFailed("That divides by zero.")
    return f"{expression} = 42"


def recall(query: str, every_word: bool = False) -> dict[str, str]:
    """Find a memory."""
    assert every_word
    return {"query": query}


def query_csv(text: str) -> str:
    """Ask a table."""
    return text


def list_skills() -> str:
    """List the skills."""
    return "word  " * 1000


def forget(query: str) -> str:
    """Forget a memory."""
    raise ModelRetry(f"{query}: which one?")


@pytest.fixture
def model(cards: tuple[Card, ...]) -> BuiltinModel:
    return BuiltinModel(cards=lambda: cards)


@pytest.fixture
def agent(model: BuiltinModel) -> Agent[None, str]:
    return Agent(model, tools=[calculate, recall, list_skills, forget])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("what is 6 * 7?", "6 * 7 = 42"),
        ("1 / 0", "That divides by zero."),
        ("what is my name?", '{"query":"name"}'),
        ("forget my name", "forget could not be completed: name: which one?"),
    ],
)
async def test_tool_result_is_the_answer(agent: Agent[None, str], text: str, answer: str) -> None:
    result = await agent.run(text)
    assert result.output.startswith(answer)


async def test_streamed_answer_arrives_in_words_and_is_complete(agent: Agent[None, str]) -> None:
    pieces: list[str] = []
    async with agent.run_stream_events("what is the meaning of life") as events:
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    pieces.append(text)
                case _:
                    pass
    assert "".join(pieces) == (await agent.run("what is the meaning of life")).output
    assert len(pieces) > 20


async def test_long_answer_is_streamed_in_a_bounded_number_of_pieces(agent: Agent[None, str]) -> None:
    async with agent.run_stream_events("list your skills") as events:
        pieces = [event async for event in events if isinstance(event, PartDeltaEvent | PartStartEvent)]
    assert 2 < len(pieces) <= PIECES_LIMIT + 1


async def test_streamed_tool_calls_run(agent: Agent[None, str]) -> None:
    async with agent.run_stream("6 * 7") as stream:
        assert await stream.get_output() == "6 * 7 = 42"


async def test_history_does_not_affect_the_answer(agent: Agent[None, str]) -> None:
    first = await agent.run("what is 6 * 7?")
    second = await agent.run("what is my name?", message_history=first.all_messages())
    assert second.output == '{"query":"name"}'


async def test_response_names_the_model_and_counts_words(agent: Agent[None, str]) -> None:
    result = await agent.run("what is 6 * 7?")
    call, answer = (message for message in result.all_messages() if isinstance(message, ModelResponse))
    assert (call.model_name, call.provider_name, call.finish_reason) == ("builtin", "torana", "tool_call")
    assert answer.finish_reason == "stop"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 5)


@pytest.mark.parametrize("text", ["hello", "Hi there!", "Who are you?", "Good morning, Torana"])
async def test_greeting_is_answered_with_examples(agent: Agent[None, str], text: str) -> None:
    answer = (await agent.run(text)).output

    assert "I am Torana's builtin model: I follow fixed rules and do not understand language." in answer
    assert "Try “What is 17 % of 2,340?”. “help” lists everything." in answer
    assert "fits" not in answer


@pytest.mark.parametrize("text", ["help", "What can you do?"])
async def test_help_lists_the_usable_skills(agent: Agent[None, str], text: str) -> None:
    answer = (await agent.run(text)).output

    assert "- Calculator: “What is 17 % of 2,340?”" in answer
    assert "TORANA_MODEL=openai:gpt-5" in answer


@pytest.mark.parametrize("text", ["what is love", "Quanto fa due più due?", "🙂", "  ", "x" * 10_000])
async def test_unmatched_message_gets_an_explanation(agent: Agent[None, str], text: str) -> None:
    answer = (await agent.run(text)).output

    assert "none of them fits your message" in answer
    assert len(answer.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Wie wird das Wetter morgen?", "keine passt auf diese Nachricht"),
        ("Quel temps fait-il à Lyon ?", "aucune ne convient"),
        ("Escribe un poema para mi madre", "ninguna encaja"),
        ("今天天气怎么样？", "没有规则适合这条消息"),
    ],
)
async def test_unmatched_message_is_explained_in_its_language(
    agent: Agent[None, str], text: str, part: str
) -> None:
    answer = (await agent.run(text)).output

    assert part in answer
    assert "What is 17 % of 2,340?" in answer


async def test_skill_without_tools_is_named_with_its_requirement(agent: Agent[None, str]) -> None:
    answer = (await agent.run("Write the weekly report for the support team")).output
    assert "“Weekly report”" in answer
    assert "only a language model can follow its instructions" in answer


async def test_missing_text_is_requested(model: BuiltinModel) -> None:
    agent = Agent(model, tools=[query_csv])
    assert "with the text below it" in (await agent.run("help")).output
    assert "The text is missing." in (await agent.run("sum of amount in this CSV")).output


async def test_only_offered_tools_are_listed_and_called(model: BuiltinModel) -> None:
    agent = Agent(model, tools=[recall])
    assert "Calculator" not in (await agent.run("help")).output
    assert "cannot use the tool calculate here" in (await agent.run("6 * 7")).output


async def test_answer_says_that_no_skill_works() -> None:
    agent = Agent(BuiltinModel(cards=lambda: ()))
    assert "None of the loaded skills works with the builtin model." in (await agent.run("hello")).output


async def test_skill_added_while_running_is_used(agent: Agent[None, str], cards: tuple[Card, ...]) -> None:
    loaded: list[Card] = []
    agent = Agent(BuiltinModel(cards=lambda: loaded), tools=[calculate])
    before = (await agent.run("help")).output
    loaded.extend(cards)
    assert before != (await agent.run("help")).output


async def test_images_are_ignored(agent: Agent[None, str]) -> None:
    result = await agent.run([ImageUrl("https://example.org/cat.png"), "6 * 7"])
    assert result.output == "6 * 7 = 42"


def ask(model: BuiltinModel, text: str, tools: Sequence[str]) -> ModelResponse:
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(text)])]
    parameters = ModelRequestParameters(function_tools=[ToolDefinition(name=name) for name in tools])
    request = model.request(messages, None, parameters)
    try:
        request.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the model waited for something")


def test_users_with_different_tools_share_the_model_without_building_it_anew(
    monkeypatch: pytest.MonkeyPatch, cards: tuple[Card, ...]
) -> None:
    built: list[Chooser] = []

    class CountedChooser(Chooser):
        def __init__(self, **parts: Any) -> None:
            super().__init__(**parts)
            built.append(self)

    monkeypatch.setattr("torana.models.builtin.model.Chooser", CountedChooser)
    model = BuiltinModel(cards=lambda: cards)
    for _ in range(3):
        for tools in (["calculate"], ["calculate", "forget"]):
            ask(model, "6 * 7", tools)
    assert len(built) == 2


def test_oldest_choosers_are_closed(monkeypatch: pytest.MonkeyPatch, cards: tuple[Card, ...]) -> None:
    closed: list[int] = []

    class ClosedChooser(Chooser):
        def __init__(self, *, tools: Mapping[str, ToolDefinition], **parts: Any) -> None:
            super().__init__(tools=tools, **parts)
            self._number = len(tools)

        def close(self) -> None:
            super().close()
            closed.append(self._number)

    monkeypatch.setattr("torana.models.builtin.model.Chooser", ClosedChooser)
    model = BuiltinModel(cards=lambda: cards)
    for count in [*range(CHOOSERS_LIMIT), 0, CHOOSERS_LIMIT, CHOOSERS_LIMIT + 1]:
        ask(model, "which skill?", sorted(READERS)[:count])
    assert closed == [1, 2]


VOCABULARY = (
    "what is my the of in days until remember that forget 12 km miles use skill sort lines count words said "
    'first last sum csv a,b\n1,2 today 24 december 3 weeks from name called { } [ ] : , " ` $ % ( )'
)
WORDS = st.lists(st.sampled_from(VOCABULARY.split(" ")), max_size=12).map(" ".join)


@given(text=st.text(max_size=80) | WORDS, tools=st.sets(st.sampled_from(sorted(READERS))))
def test_any_text_is_answered_and_only_tools_on_offer_are_called(text: str, tools: set[str]) -> None:
    response = ask(BuiltinModel(cards=lambda: ()), text, sorted(tools))
    part = response.parts[0]
    if isinstance(part, ToolCallPart):
        assert part.tool_name in tools
    else:
        assert isinstance(part, TextPart)
        assert part.content


def test_import_loads_no_heavy_modules() -> None:
    program = (
        "import sys, torana.models.builtin;"
        "heavy = {'openai', 'anthropic', 'pint', 'dateparser', 'sqlalchemy', 'fastapi', 'jsonpath_rfc9535'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
