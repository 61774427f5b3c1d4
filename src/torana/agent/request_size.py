"""Measure a model request in tokens before it is sent.

A text has at most as many tokens as bytes. For tool definitions that is far too high. Once a provider has
reported the tokens of a request with these tools, the reported number replaces the estimate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from torana.limits.request_tokens import RequestTokens, likely_of_bytes, likely_tokens, tokens_of_files
from torana.models.listing import listed

#: Bytes added for each message part and each tool, such as for the role of a part.
_FRAME = 64

#: The frame of each content of a prompt: a text of ``_FRAME`` bytes.
_CONTENT_FRAME = " " * _FRAME

#: Tool sets whose tokens are remembered; the operator's rules decide which sets exist.
_SETS = 16

#: Tools whose size is remembered.
_SIZES = 1_000

#: Models for which the tokens of a tool set are remembered.
_MODELS = 8


@dataclass(slots=True)
class ToolSet:
    """Tools that were sent together, and the tokens of each model's smallest request with them."""

    tools: Sequence[ToolDefinition]
    size: int
    _least: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def tokens(self) -> RequestTokens:
        """Return the tokens of the definitions: the largest number of the known models."""
        if not self._least:
            return RequestTokens.of_bytes(self.size)
        known = min(self.size, max(self._least.values()))
        return RequestTokens(likely=known, most=known)

    def learn(self, response: ModelResponse) -> None:
        """Note the input tokens that the provider reported for a request with these tools."""
        model, tokens = response.model_name or "", response.usage.input_tokens
        if tokens > 0 and (model in self._least or len(self._least) < _MODELS):
            self._least[model] = min(tokens, self._least.get(model, tokens))

    def consists_of(self, tools: Sequence[ToolDefinition]) -> bool:
        """Return whether these are the same tools in the same order."""
        return len(tools) == len(self.tools) and all(map(_is_same, tools, self.tools))


class FixedTokens:
    """Measures the part that all requests begin with: the instructions and the tool definitions.

    Calling it returns the tokens for a new message. Thread-safe.

    With ``several_models``, another model than that of the last response may receive a turn's next request.
    """

    def __init__(
        self,
        *,
        instruction_bytes: Callable[[], int],
        tool_bytes: Callable[[], int],
        several_models: bool = False,
    ) -> None:
        self._instruction_bytes = instruction_bytes
        self._tool_bytes = tool_bytes
        self.several_models = several_models
        #: Newest last.
        self._sets: tuple[ToolSet, ...] = ()
        #: The last set that was sent, and the size of all tools at that time.
        self._last: tuple[ToolSet, int] | None = None

    def __call__(self) -> RequestTokens:
        """Return the tokens of the fixed part of a request."""
        size, last = self._tool_bytes(), self._last
        instructions = RequestTokens.of_bytes(self._instruction_bytes())
        if last is None:
            return instructions + RequestTokens.of_bytes(size)
        shown, size_then = last
        return instructions + shown.tokens + RequestTokens.of_bytes(max(0, size - size_then))

    def show(self, tools: Sequence[ToolDefinition]) -> ToolSet:
        """Return the set of these tools for the request that is about to be sent."""
        shown = next((one for one in reversed(self._sets) if one.consists_of(tools)), None)
        if shown is None:
            shown = ToolSet(tools=tuple(tools), size=sum(map(definition_bytes, tools)))
            self._sets = (*self._sets[1 - _SETS :], shown)
        self._last = shown, self._tool_bytes()
        return shown


class RequestMeter:
    def __init__(self, fixed: FixedTokens) -> None:
        self._fixed = fixed
        self._shown: ToolSet | None = None
        self._fixed_bytes = 0
        self._messages = 0
        self._measured = RequestTokens(likely=0, most=0)
        #: The tokens of the last request and its response; None before the first response.
        self._before: RequestTokens | None = None

    def measure(self, asked: ModelRequestContext) -> RequestTokens:
        """Return the tokens of a request. After a response, only the new messages are measured.

        If there are several models, the maximum remains that of all messages: the next model may count more
        tokens than the one that reported its usage.
        """
        parameters = asked.model_request_parameters
        shown = self._fixed.show(listed(parameters.function_tools))
        instructions = sum(_bytes(part.content) for part in parameters.instruction_parts or ())
        fixed_bytes = shown.size + instructions

        def whole() -> RequestTokens:
            text = RequestTokens.of_bytes(instructions + message_bytes(asked.messages))
            return shown.tokens + text + files_in(asked.messages)

        if self._before is None:
            self._measured = whole()
        else:
            new = asked.messages[self._messages + 1 :]
            grown = max(0, fixed_bytes - self._fixed_bytes)
            measured = self._before + RequestTokens.of_bytes(grown + message_bytes(new)) + files_in(new)
            most = max(measured.most, whole().most) if self._fixed.several_models else measured.most
            self._measured = RequestTokens(likely=measured.likely, most=most)
        self._shown, self._fixed_bytes, self._messages = shown, fixed_bytes, len(asked.messages)
        return self._measured

    def learn(self, response: ModelResponse) -> None:
        """Note the usage that the provider reported for the last measured request."""
        if self._shown is not None:
            self._shown.learn(response)
        used = response.usage
        if used.input_tokens:
            tokens = used.input_tokens + used.output_tokens
            self._before = RequestTokens(likely=tokens, most=tokens)
        else:
            self._before = self._measured + RequestTokens.of_bytes(message_bytes([response]))


def definition_bytes(tool: ToolDefinition) -> int:
    schema = json.dumps(tool.parameters_json_schema, ensure_ascii=False)
    return _FRAME + _bytes(tool.name) + _bytes(tool.description or "") + _bytes(schema)


def message_bytes(messages: Sequence[ModelMessage]) -> int:
    return sum(_FRAME + sum(map(_bytes, texts_of(part))) for message in messages for part in message.parts)


def message_tokens(messages: Sequence[ModelMessage]) -> int:
    """Return an upper estimate of the tokens of the messages, without knowing the model's tokenizer."""
    frame = likely_of_bytes(_FRAME)
    texts = sum(
        frame + sum(map(likely_tokens, texts_of(part))) for message in messages for part in message.parts
    )
    return texts + files_in(messages).likely


class ToolSizes:
    """Remembers the sizes of tools' definitions; the same schema is the same object."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ToolDefinition, int]] = {}

    def tokens(self, tools: Sequence[ToolDefinition]) -> int:
        """Return an upper estimate of the tokens of the definitions in a request."""
        return sum(map(self._of, tools))

    def _of(self, tool: ToolDefinition) -> int:
        if tool.defer_loading:  # the request leaves the tool out
            return 0
        known, size = self._known.get(id(tool.parameters_json_schema), (None, 0))
        if known is None or not _is_same(known, tool):
            size = likely_of_bytes(definition_bytes(tool))
            if len(self._known) >= _SIZES:
                self._known.clear()
            self._known[id(tool.parameters_json_schema)] = tool, size
        return size


def texts_of(part: ModelRequestPart | ModelResponsePart) -> Iterator[str]:
    """Yield the texts of a message's part that a request contains."""
    match part:
        case ToolCallPart():
            yield from (part.tool_name, part.tool_call_id, part.args_as_json_str())
        case ToolReturnPart():
            yield from (part.tool_name, part.tool_call_id, part.model_response_str())
        case UserPromptPart(content=str() as text):
            yield text
        case UserPromptPart(content=contents):
            yield from map(_text_of, contents)
        case TextPart() | ThinkingPart() | SystemPromptPart():
            yield part.content
        case _:
            yield str(getattr(part, "content", ""))


def _text_of(content: UserContent) -> str:
    """Return the text of a prompt's content, with its frame."""
    match content:
        case str():
            return _CONTENT_FRAME + content
        case TextContent():
            return _CONTENT_FRAME + content.content
        case _:
            return _CONTENT_FRAME


def files_in(messages: Sequence[ModelMessage]) -> RequestTokens:
    files = [
        (content.media_type, len(content.data))
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str)
        for content in part.content
        if isinstance(content, BinaryContent)
    ]
    return tokens_of_files(files)


def _is_same(one: ToolDefinition, other: ToolDefinition) -> bool:
    """Return whether both definitions are of the same tool; the same schema is the same object."""
    return one is other or (
        one.parameters_json_schema is other.parameters_json_schema
        and (one.name, one.description) == (other.name, other.description)
    )


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
