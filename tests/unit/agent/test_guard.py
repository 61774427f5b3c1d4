"""Errors and long results of tools, as the model receives them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, RunContext, ToolFailed
from pydantic_ai.capabilities import AbstractCapability, ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import BinaryContent, ModelRequest, ToolCallPart, ToolReturn, ToolReturnPart
from pydantic_ai.tools import ToolDefinition

from torana.agent.tool_errors import RESULT_LIMIT, run_with_error_handling
from torana.testing import ScriptedModel
from torana.tools import ToolContext, ToolError


class Guarded(AbstractCapability[ToolContext]):
    async def wrap_tool_execute(
        self,
        ctx: RunContext[ToolContext],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        return await run_with_error_handling(args, call=call, handler=handler)


async def results(tool: Callable[..., Any], times: int = 1, limit: float | None = None) -> list[ToolReturnPart]:
    """Call the tool this number of times and return the results that the model receives."""
    calls = [[ToolCallPart(tool.__name__, {})] for _ in range(times)]
    model = ScriptedModel(*calls, "done")
    toolset = FunctionToolset[ToolContext]([tool], timeout=limit)
    agent = Agent(model, deps_type=ToolContext, toolsets=[toolset], capabilities=[Guarded()])

    async with agent.run_stream_events("go", deps=None) as events:  # pyright: ignore[reportArgumentType]
        async for _ in events:
            pass

    requests = [message for message in model.requests[-1].messages if isinstance(message, ModelRequest)]
    return [part for request in requests for part in request.parts if isinstance(part, ToolReturnPart)]


def raising(error: Exception) -> Callable[[], str]:
    def broken() -> str:
        """Break."""
        raise error

    return broken


def returning(value: Any) -> Callable[[], Any]:
    def lookup() -> Any:
        """Look up."""
        return value

    return lookup


@pytest.mark.parametrize(
    "error",
    [ToolError("There is no order 7."), ToolFailed("There is no order 7."), ModelRetry("There is no order 7.")],
    ids=lambda error: type(error).__name__,
)
async def test_tool_errors_reach_the_model_on_every_call(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    told = await results(raising(error), times=4)

    assert [(part.outcome, part.content) for part in told] == [("failed", "There is no order 7.")] * 4
    assert caplog.records == []


async def test_unexpected_error_is_reported_by_type_and_logged_in_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        (told,) = await results(raising(LookupError("password 5309")))

    assert told.outcome == "failed"
    assert told.content == "The tool broken failed with LookupError; the log has the details."
    assert "password 5309" in caplog.text
    assert getattr(caplog.records[0], "tool", None) == "broken"


async def test_async_tool_times_out_on_every_call() -> None:
    async def slow() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    told = await results(slow, times=3, limit=0.01)

    assert [(part.outcome, part.content) for part in told] == [("failed", "Timed out after 0.01 seconds.")] * 3


async def test_sync_tool_times_out() -> None:
    def slow() -> str:
        """Take a fifth of a second."""
        time.sleep(0.2)
        return "too late"

    (told,) = await results(slow, limit=0.01)

    assert told.content == "Timed out after 0.01 seconds."


class Order(BaseModel):
    number: int
    note: str = ""


@pytest.mark.parametrize(
    "value", ["short", 7, None, ["a", 1], {"a": {"b": [None]}}, Order(number=7), "x" * RESULT_LIMIT], ids=str
)
async def test_short_result_is_unchanged(value: Any) -> None:
    (told,) = await results(returning(value))

    assert (told.outcome, told.content) == ("success", value)


@pytest.mark.parametrize(
    "value",
    [
        "y" * (RESULT_LIMIT + 7),
        ["y" * 100] * 1_000,
        {"rows": [{"n": n} for n in range(10_000)]},
        Order(number=1, note="y" * 30_000),
    ],
    ids=["text", "list", "object", "model"],
)
async def test_long_results_of_any_kind_are_cut_with_a_note(value: Any) -> None:
    (told,) = await results(returning(value))

    assert isinstance(told.content, str)
    assert len(told.content) < RESULT_LIMIT + 60
    text, _, note = told.content.rpartition("\n")
    assert len(text) == RESULT_LIMIT
    assert note.startswith("… (cut: ")
    assert told.outcome == "success"


async def test_long_failures_are_cut() -> None:
    (told,) = await results(raising(ToolError("y" * 100_000)))

    assert len(str(told.content)) < RESULT_LIMIT + 60


async def test_file_result_is_not_cut() -> None:
    picture = BinaryContent(b"\x89PNG" + b"\0" * 100_000, media_type="image/png")

    (told,) = await results(returning(["a chart", picture]))

    assert told.files == [picture]


async def test_wrapped_result_is_cut_inside() -> None:
    (told,) = await results(returning(ToolReturn(return_value="y" * 30_000, metadata={"kept": True})))

    assert str(told.content).endswith("(cut: 10000 more characters)")
    assert told.metadata == {"kept": True}


async def test_unserializable_result_is_a_tool_error(caplog: pytest.LogCaptureFixture) -> None:
    (told,) = await results(returning(object()))

    assert told.outcome == "failed"
    assert "The tool lookup failed with" in str(told.content)
