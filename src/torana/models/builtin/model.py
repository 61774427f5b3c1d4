"""The builtin model as a model class of pydantic-ai."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RequestUsage

from torana.messages import NOTE_MARK
from torana.models.builtin import answers
from torana.models.builtin.cards import Card
from torana.models.builtin.choice import Chooser, Fit
from torana.models.builtin.explicit import ExplicitCall, Unclear
from torana.models.builtin.followups import EARLIER_LIMIT
from torana.models.builtin.languages import FixedReply

#: Maximum number of pieces of a streamed answer; a longer answer has more words in each piece.
PIECES_LIMIT = 200
#: Maximum number of choosers that are kept.
CHOOSERS_LIMIT = 8

#: The skills and the tools that a chooser chooses from.
_Known = tuple[tuple[Card, ...], tuple[ToolDefinition, ...]]

_NAME = "builtin"
_SYSTEM = "torana"
_WORD = re.compile(r"\s*\S+\s*|\s+")


class BuiltinModel(Model):
    """Answers by fixed rules, without a language model.

    It answers a prompt with a tool call or a text, and returns tool results reworded for people. It reads the
    last prompt, and earlier ones only if the last refers to them. The same messages get the same answer. Usage
    counts words. Use it in the thread of one event loop.
    """

    def __init__(self, *, cards: Callable[[], Sequence[Card]]) -> None:
        """``cards`` returns the currently loaded skills; it is called for every answer."""
        # ``Model.__init__`` would load 5 MB of data about other models.
        self._settings = None
        self._profile = ModelProfile(context_window=None)
        self._cards = cards
        #: The choosers of the last lists of skills and tools, the newest last: users may have different tools.
        self._choosers: list[tuple[_Known, Chooser]] = []

    @property
    def model_name(self) -> str:
        return _NAME

    @property
    def system(self) -> str:
        return _SYSTEM

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        return self._answer(messages, parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        yield _Stream(model_request_parameters=parameters, response=self._answer(messages, parameters))

    def _answer(self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        *earlier, message = messages
        returned = [part for part in message.parts if isinstance(part, ToolReturnPart)]
        asked = answers.results(returned) if returned else _prompt(message)
        if returned:
            part = TextPart(asked)
        else:
            before = [text for other in earlier if (text := _prompt(other))]
            part = self._reply(asked, before[-EARLIER_LIMIT:], parameters.function_tools)
        answered = part.content if isinstance(part, TextPart) else part.args_as_json_str()
        return ModelResponse(
            parts=[part],
            usage=RequestUsage(
                input_tokens=len(asked.split()), output_tokens=len(answered.split()), cost=Decimal(0)
            ),
            model_name=_NAME,
            provider_name=_SYSTEM,
            finish_reason="tool_call" if isinstance(part, ToolCallPart) else "stop",
        )

    def _reply(
        self, text: str, earlier: Sequence[str], tools: Sequence[ToolDefinition]
    ) -> TextPart | ToolCallPart:
        chooser = self._current_chooser(tuple(self._cards()), tuple(tools))
        match chooser.choose(text, earlier):
            case ExplicitCall(tool, arguments):
                return ToolCallPart(tool, dict(arguments))
            case FixedReply() as reply:
                return TextPart(answers.small_talk(reply, chooser.examples))
            case Unclear(explanation):
                return TextPart(explanation)
            case Fit(card):
                return TextPart(answers.needs_language_model(card))
            case None:
                return TextPart(answers.unmatched_answer(text, chooser.examples))

    def _current_chooser(self, cards: tuple[Card, ...], tools: tuple[ToolDefinition, ...]) -> Chooser:
        """Return the chooser of these lists. Building one takes longer than an answer."""
        known = (cards, tools)
        found = next((one for one in reversed(self._choosers) if one[0] == known), None)
        if found is None:
            found = (known, Chooser(cards=cards, tools={tool.name: tool for tool in tools}))
        else:
            self._choosers.remove(found)
        self._choosers.append(found)
        if len(self._choosers) > CHOOSERS_LIMIT:
            _, oldest = self._choosers.pop(0)
            oldest.close()
        return found[1]


def _prompt(message: ModelMessage) -> str:
    """Return the text of the user's prompt in a message, or ''."""
    return "\n".join(_prompts(message.parts))


def _prompts(parts: Sequence[ModelRequestPart | ModelResponsePart]) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, UserPromptPart):
            continue
        if isinstance(part.content, str):
            yield part.content.partition(NOTE_MARK)[0]
            continue
        for item in part.content:
            if isinstance(item, str | TextContent):
                yield item.partition(NOTE_MARK)[0] if isinstance(item, str) else item.content


@dataclass
class _Stream(StreamedResponse):
    response: ModelResponse

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        self._usage = self.response.usage
        self.finish_reason = self.response.finish_reason
        for index, part in enumerate(self.response.parts):
            if isinstance(part, ToolCallPart):
                yield self._parts_manager.handle_tool_call_part(
                    vendor_part_id=index,
                    tool_name=part.tool_name,
                    args=part.args_as_dict(),
                    tool_call_id=part.tool_call_id,
                )
            elif isinstance(part, TextPart):
                for piece in _pieces(part.content):
                    for event in self._parts_manager.handle_text_delta(vendor_part_id=index, content=piece):
                        yield event

    async def close_stream(self) -> None:
        """Do nothing: there is no connection to close."""

    @property
    def model_name(self) -> str:
        return _NAME

    @property
    def provider_name(self) -> str:
        return _SYSTEM

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.response.timestamp


def _pieces(text: str) -> Iterator[str]:
    """Yield the text word by word, or with more words in each piece if it is long."""
    found = _WORD.findall(text)
    step = -(-len(found) // PIECES_LIMIT)
    for start in range(0, len(found), step or 1):
        yield "".join(found[start : start + step])
