"""Requests of a model within its context window."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from torana.agent.request_size import files_in, message_tokens
from torana.agent.windows.budget import ContextBudget, fit_requests
from torana.agent.windows.fit import Parts
from torana.limits.request_tokens import parts_of
from torana.messages import InputParts
from torana.models.builtin import BuiltinModel
from torana.models.context_overflow import Overflow
from torana.models.context_windows import KnownWindow
from torana.testing import ScriptedModel

OVERFLOW = ModelHTTPError(
    400, "scripted", {"message": "request (9000 tokens) exceeds the available context size (2048 tokens)"}
)


def prompt(size: int) -> list[ModelMessage]:
    return [ModelRequest.user_text_prompt("a word and " * (size // 11))]


def with_file(file: BinaryContent) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(["this", file])])


def size_of(model: ScriptedModel, number: int = -1) -> int:
    return message_tokens(model.requests[number].messages)


async def test_refused_request_is_sent_once_more_and_smaller() -> None:
    model = ScriptedModel([OVERFLOW], "done", "done")
    [budget] = fit_requests(model, window=0, answer=4_096)

    async with model_request_stream(model, prompt(30_000)) as stream:
        async for _ in stream:
            pass

    assert size_of(model, 1) < size_of(model, 0)
    assert size_of(model, 1) <= 2_048 * 3 // 4
    assert budget.window == 2_048
    await model_request(model, prompt(30_000))
    assert size_of(model) <= 2_048 * 3 // 4


async def test_stream_is_freed_without_a_collection() -> None:
    model = ScriptedModel("done")
    fit_requests(model, window=0, answer=4_096)
    gc.disable()
    try:
        async with model.request_stream(prompt(10), None, ModelRequestParameters()) as stream:
            assert [event async for event in stream]
            freed = weakref.ref(stream)
        del stream
        assert freed() is None
    finally:
        gc.enable()


async def test_stream_of_a_model_that_is_fitted_twice_ends() -> None:
    model = ScriptedModel("done")
    for _ in range(2):
        fit_requests(model, window=0, answer=4_096)

    async with model_request_stream(model, prompt(10)) as stream:
        assert [event async for event in stream]


async def test_request_that_is_refused_twice_fails() -> None:
    model = ScriptedModel([OVERFLOW], [OVERFLOW])
    fit_requests(model, window=100_000, answer=4_096)

    with pytest.raises(ModelHTTPError, match="exceeds the available context size"):
        await model_request(model, prompt(30_000))

    assert len(model.requests) == 2


async def test_other_errors_are_not_retried() -> None:
    model = ScriptedModel([ModelHTTPError(500, "scripted", None)])
    fit_requests(model, window=100_000, answer=4_096)

    with pytest.raises(ModelHTTPError):
        await model_request(model, prompt(100))

    assert len(model.requests) == 1


async def test_usage_of_a_response_names_the_parts_of_its_request() -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        response = ModelResponse(parts=[])
        response.usage = RequestUsage(input_tokens=1_000, output_tokens=5)
        return response

    model = FunctionModel(answer)
    fit_requests(model, window=8_000, answer=4_096)

    response = await model_request(
        model, [ModelRequest.user_text_prompt("hello", instructions="Be brief. " * 20)]
    )

    parts = parts_of([response])
    assert parts.instructions + parts.tools + parts.history == 1_000
    assert parts.instructions > parts.history > 0
    assert parts.tools == 0


def test_each_model_of_a_list_has_its_own_budget_and_the_builtin_model_none() -> None:
    model = FallbackModel(ScriptedModel(), ScriptedModel(), BuiltinModel(cards=list))

    assert len(fit_requests(model, window=4_096, answer=4_096)) == 2


def budget(window: int = 8_000) -> ContextBudget:
    return ContextBudget(window=window, answer=1_000)


def parts(tokens: int) -> Parts:
    return Parts(instructions=0, tools=0, messages=tokens)


def test_largest_of_the_last_100_reports_corrects_the_estimate() -> None:
    here = budget()
    first = here.message_room or 0
    here.learn(parts(1_000), 2_000)
    smaller = here.message_room or 0
    for _ in range(99):
        here.learn(parts(1_000), 500)
    assert here.message_room == smaller < first

    here.learn(parts(1_000), 500)
    assert (here.message_room or 0) > first


def test_small_requests_and_missing_usage_correct_nothing() -> None:
    here = budget()
    first = here.message_room
    here.learn(parts(20), 200)
    here.learn(parts(1_000), 0)

    assert here.message_room == first


def test_refusal_without_sizes_halves_the_request() -> None:
    here = budget()
    here.shrink(Overflow(), parts(4_000))

    assert here.window == 2_500


@pytest.mark.parametrize("overflow", [Overflow(), Overflow(window=300)])
def test_window_after_a_refusal_is_smaller_for_ten_minutes(overflow: Overflow) -> None:
    now = 0.0
    here = ContextBudget(window=8_000, answer=1_000, monotonic=lambda: now)
    first = here.message_room
    here.shrink(overflow, parts(4_000))
    assert here.window in (2_500, 300)

    now = 600.0

    assert (here.window, here.message_room) == (8_000, first)


def test_request_with_files_changes_neither_the_estimate_nor_the_window() -> None:
    here = budget()
    first = here.message_room
    with_file = Parts(instructions=0, tools=0, messages=4_000, files=2_000)
    here.learn(with_file, 40_000)
    here.shrink(Overflow(asked=900_000), with_file)
    here.shrink(Overflow(), with_file)

    assert (here.window, here.message_room) == (8_000, first)

    here.shrink(Overflow(window=4_000), with_file)
    assert here.window == 4_000


async def test_refused_request_with_a_file_is_sent_once_more_without_it() -> None:
    model = ScriptedModel([ModelHTTPError(400, "scripted", {"message": "context_length_exceeded"})], "done")
    [budget] = fit_requests(model, window=100_000, answer=4_096)
    file = BinaryContent(data=b"%PDF-1.7", media_type="application/pdf")

    await model_request(model, [*prompt(3_000), ModelRequest.user_text_prompt("summarize"), with_file(file)])

    assert files_in(model.requests[0].messages).likely > files_in(model.requests[1].messages).likely == 0
    assert [*model.requests[1].messages[:2]] == [*model.requests[0].messages[:2]]
    assert budget.window == 100_000


def test_answer_is_limited_to_the_rest_of_the_window() -> None:
    here = budget()

    assert here.settings(ModelSettings(max_tokens=6_000), parts(4_000)) == {"max_tokens": 3_000}
    assert here.settings(ModelSettings(max_tokens=2_000), parts(4_000)) == {"max_tokens": 2_000}
    assert here.settings(None, parts(4_000)) is None


async def test_stated_window_is_asked_for_once_and_an_assumed_one_twice() -> None:
    questions = 0

    def finder(found: KnownWindow) -> Callable[[], Awaitable[KnownWindow]]:
        async def find() -> KnownWindow:
            nonlocal questions
            questions += 1
            return found

        return find

    for found, expected in ((KnownWindow(tokens=512), 1), (KnownWindow(tokens=512, is_assumed=True), 2)):
        here, questions = ContextBudget(window=0, answer=100, find=finder(found)), 0
        await asyncio.gather(*(here.prepare() for _ in range(4)))
        await here.prepare()
        assert (here.window, questions) == (512, expected)


def test_parts_are_scaled_to_the_reported_tokens() -> None:
    scaled = InputParts(instructions=10, tools=20, history=30).scaled_to(100)

    assert scaled == InputParts(instructions=16, tools=33, history=51)
