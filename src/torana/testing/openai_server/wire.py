"""The data types of OpenAI's Chat Completions API that clients use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field

from torana.messages import NOTE_MARK

_TOKEN = re.compile(r" ?\w{1,4}|[^\w ]| ")
_WORD = re.compile(r"\s*\S+|\s+")
#: Arguments are sent in pieces of at least this many characters, and in about this many pieces.
_ARGUMENT_PIECE = 12
_ARGUMENT_PIECES = 20
_DIMENSIONS = 256


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of the tools in the request.

    Without an ``id``, the server generates a unique one.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None


#: The assistant's answer: a text, or tool calls.
Answer = str | Sequence[Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer with its reported usage, or a stream of texts of any length.

    ``usage`` is the JSON object to send; by default, the words of the request and the answer are counted.
    ``pieces`` are sent after ``answer``, each in a separate event; they are generated as the client reads, so
    that their number may be infinite, and are not counted.
    """

    answer: Answer = ""
    usage: Mapping[str, Any] | None = None
    pieces: Iterable[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply:
    """A response with any bytes and headers; the body is generated as the client reads."""

    body: Iterable[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})


class FunctionSpec(BaseModel):
    """A tool's name, its description, and the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class ToolSpec(BaseModel):
    """A tool in the request."""

    function: FunctionSpec


class StreamOptions(BaseModel):
    """The options of a stream."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of ``POST /v1/chat/completions``, without the fields that have no effect here."""

    model_config = ConfigDict(frozen=True)

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[ToolSpec] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def text(self) -> str:
        """Return the text of the last user message without the gateway's note on it, or an empty string."""
        spoken = (message for message in reversed(self.messages) if message.get("role") == "user")
        return next((_text(message) for message in spoken), "").partition(NOTE_MARK)[0]

    @property
    def results(self) -> list[str]:
        """Return the results of the tool calls in the previous answer, in order."""
        found: list[str] = []
        for message in reversed(self.messages):
            if message.get("role") != "tool":
                break
            found.append(_text(message))
        return found[::-1]

    @property
    def called(self) -> list[str]:
        """Return the names of the tools whose results end the request, in order."""
        answer = self.messages[-1 - len(self.results)] if self.results else {}
        return [call["function"]["name"] for call in answer.get("tool_calls") or ()]

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Return the offered tools: name and JSON schema of the arguments."""
        return {tool.function.name: tool.function.parameters for tool in self.tools}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An answer to a request, rendered as a whole or as chunks of a stream."""

    id: str
    created: int
    request: ChatRequest
    answer: Answer
    usage: Mapping[str, Any] | None = None
    pieces: Iterable[str] = ()

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if isinstance(self.answer, str):
            message["content"] = "".join([self.answer, *self.pieces])
        else:
            message["tool_calls"] = self._calls(self.answer)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason}
        return self._object("chat.completion", [choice]) | {"usage": self._usage()}

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the ``chat.completion.chunk`` objects: role, answer in pieces, end, and usage if requested."""
        yield self._chunk({"role": "assistant", "content": ""})
        for delta in self._deltas():
            yield self._chunk(delta)
        yield self._chunk({}, finish_reason=self._finish_reason)
        if self.request.stream_options.include_usage:
            yield self._object("chat.completion.chunk", []) | {"usage": self._usage()}

    @property
    def _finish_reason(self) -> str:
        return "stop" if isinstance(self.answer, str) else "tool_calls"

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }

    def _chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [choice])

    def _deltas(self) -> Iterator[dict[str, Any]]:
        if isinstance(self.answer, str):
            yield from ({"content": word} for word in _WORD.findall(self.answer))
        else:
            yield from self._call_deltas(self.answer)
        yield from ({"content": piece} for piece in self.pieces)

    def _call_deltas(self, calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
        for index, call in enumerate(self._calls(calls)):
            arguments = call["function"]["arguments"]
            opened = {**call, "function": {**call["function"], "arguments": ""}}
            yield {"tool_calls": [{"index": index, **opened}]}
            size = max(_ARGUMENT_PIECE, len(arguments) // _ARGUMENT_PIECES)
            for start in range(0, len(arguments), size):
                piece = {"arguments": arguments[start : start + size]}
                yield {"tool_calls": [{"index": index, "function": piece}]}

    def _calls(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        return [
            {
                "id": f"{self.id}-call-{number}" if call.id is None else call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for number, call in enumerate(calls, start=1)
        ]

    def _usage(self) -> Mapping[str, Any]:
        """Return the usage; words are counted as tokens, which is stable and plausible."""
        if self.usage is not None:
            return self.usage
        asked = sum(len(_text(message).split()) for message in self.request.messages)
        text = self.answer if isinstance(self.answer, str) else json.dumps(self._calls(self.answer))
        answered = len(text.split())
        return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def error_body(message: str, *, type_: str, code: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def count_tokens(request: ChatRequest) -> int:
    """Return the tokens of a request: each four letters or digits of a word, and each other character."""
    tools = [tool.model_dump(mode="json") for tool in request.tools]
    return len(_TOKEN.findall(json.dumps([request.messages, tools], ensure_ascii=False)))


def context_error(tokens: int, window: int) -> dict[str, Any]:
    """Return llama.cpp's error for a request that exceeds the context window."""
    message = (
        f"request ({tokens} tokens) exceeds the available context size ({window} tokens), try increasing it"
    )
    error = {"code": 400, "message": message, "type": "exceed_context_size_error"}
    return {"error": {**error, "n_prompt_tokens": tokens, "n_ctx": window}}


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content, which is a string, a list of parts, or missing."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts: list[Mapping[str, Any]] = content or []
    return "".join(str(part.get("text", "")) for part in parts)


class EmbeddingRequest(BaseModel):
    """The body of ``POST /v1/embeddings``. The vectors are always sent as numbers."""

    model: str
    input: list[str] | str


def embeddings(request: EmbeddingRequest) -> dict[str, Any]:
    """Return the response: the word counts of each text, so that texts with common words are near."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    data = [
        {"object": "embedding", "index": index, "embedding": _word_counts(text)}
        for index, text in enumerate(texts)
    ]
    tokens = sum(len(text.split()) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": request.model, "data": data, "usage": usage}


def _word_counts(text: str) -> list[float]:
    counts = [0.0] * _DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        counts[crc32(word.encode()) % _DIMENSIONS] += 1
    return counts
