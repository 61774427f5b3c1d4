"""A model with scripted answers, for tests inside the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

#: A chunk of text, a tool call, an error to raise, or an event to wait for.
Piece = str | ToolCallPart | Exception | asyncio.Event


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the model: the messages, tools and settings."""

    messages: tuple[ModelMessage, ...]
    info: AgentInfo


class ScriptedModel(FunctionModel):
    """A model with answers that are given in advance.

    Each argument answers one request: a text, or pieces that are returned in order, streamed or not::

        ScriptedModel([ToolCallPart("calculate", {"expression": "1+1"})], ["It ", gate, "is 2."])

    ``requests`` are the requests so far, oldest first; ``asked`` waits for them. A request after the last
    answer raises an AssertionError.
    """

    def __init__(self, *answers: str | Sequence[Piece]) -> None:
        super().__init__(self._whole, stream_function=self._stream, model_name="scripted")
        self._answers = [[answer] if isinstance(answer, str) else list(answer) for answer in answers]
        self.requests: list[Asked] = []
        self._asked = asyncio.Condition()

    async def asked(self, times: int = 1) -> None:
        """Wait until the model has received this number of requests."""
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.requests) >= times)

    async def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        response = ModelResponse(parts=[])
        text = ""
        async for piece in self._play(messages, info):
            if isinstance(piece, ToolCallPart):
                response.parts = [*response.parts, piece]
            else:
                text += piece
        if text:
            response.parts = [TextPart(text), *response.parts]
        return response

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls]:
        calls = 0
        async for piece in self._play(messages, info):
            if isinstance(piece, str):
                yield piece
                continue
            yield {
                calls: DeltaToolCall(piece.tool_name, piece.args_as_json_str(), tool_call_id=piece.tool_call_id)
            }
            calls += 1

    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | ToolCallPart]:
        """Yield the pieces of the next answer; wait for events, and raise errors."""
        number = len(self.requests)
        self.requests.append(Asked(tuple(messages), info))
        async with self._asked:
            self._asked.notify_all()
        if number >= len(self._answers):
            raise AssertionError(
                f"the script has {len(self._answers)} answers, but the model received request {number + 1}"
            )
        for piece in self._answers[number]:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            elif isinstance(piece, Exception):
                raise piece
            else:
                yield piece
