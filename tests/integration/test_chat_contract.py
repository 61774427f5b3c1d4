"""Torana's model of Chat Completions and pydantic-ai's, given the same conversations and the same streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, cast

import pytest
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from torana.errors import ModelFailed, ModelResponseTooLarge
from torana.models.failures import MODEL_ERRORS, explain
from torana.models.providers import open_model
from torana.testing import ChatRequest, Fault, OpenAIStandIn, ScriptedModel
from torana.testing.openai_server import RawReply

HELLO = [ModelRequest.user_text_prompt("hello")]
SERVICES = ("openai-chat", "ollama", "vllm")


def ours(service: str, name: str, server: OpenAIStandIn) -> Model:
    return open_model(
        [f"{service}:{name}"], environ={}, base_url=server.url, api_key="a-long-key", builtin=ScriptedModel
    )


def theirs(service: str, name: str, server: OpenAIStandIn) -> Model:
    provide = cast("Callable[..., Any]", infer_provider_class(service))
    provider = provide(base_url=server.url, api_key="a-long-key")
    provider.client.max_retries = 1
    model = infer_model(f"{service}:{name}", provider_factory=lambda _: provider)
    model.profile["may_tokenize_special_tokens_in_content"] = False
    return model


def chunk(*choices: dict[str, Any], **others: Any) -> bytes:
    usual = {"id": "c1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m-1"}
    return (
        b"data: " + json.dumps({**usual, "choices": choices, **others}, ensure_ascii=False).encode() + b"\n\n"
    )


def delta(finish: str | None = None, **content: Any) -> bytes:
    return chunk({"index": 0, "delta": content, "finish_reason": finish})


def call(index: int, **others: Any) -> dict[str, Any]:
    function = {name: others.pop(name) for name in ("name", "arguments") if name in others}
    return {"index": index, "type": "function", "function": function, **others}


USAGE = {
    "prompt_tokens": 21,
    "completion_tokens": 12,
    "total_tokens": 33,
    "prompt_tokens_details": {"cached_tokens": 16, "audio_tokens": 0, "cache_write_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 7, "audio_tokens": 0},
    "cost": 0.25,
    "queue": None,
}
DONE = b"data: [DONE]\n\n"
END = delta("stop") + chunk(usage=USAGE) + DONE

STREAMS: dict[str, bytes] = {
    "text": delta(role="assistant", content="") + delta(content="Hello, ") + delta(content="Zoë 🙂") + END,
    "text and end in one chunk": delta("stop", content="Hello") + DONE,
    "no end": delta(content="Hello"),
    "no usage": delta(content="Hello") + delta("stop") + DONE,
    "empty answer": delta(role="assistant", content="") + END,
    "length": delta(content="Half") + delta("length") + DONE,
    "content filter": delta(content="Half") + delta("content_filter") + DONE,
    "reason of another API": delta(content="Half") + delta("guardrail_intervened") + DONE,
    "refusal": delta(refusal="I ca") + delta(refusal="n't") + END,
    "refusal after text": delta(content="Hm") + delta(refusal="no") + END,
    "thoughts": delta(reasoning_content="Let ") + delta(reasoning_content="me.") + delta(content="Yes") + END,
    "thoughts in another field": delta(reasoning="Let me.") + delta(content="Yes") + END,
    "thoughts in both fields": delta(reasoning="Let me.", reasoning_content="Let me.")
    + delta(content="Y")
    + END,
    "thoughts between texts": delta(content="A")
    + delta(reasoning="hm")
    + delta(content="\n ")
    + delta(content="B")
    + END,
    "thoughts that are no text": delta(content="A", reasoning_content="") + END,
    "thoughts in tags": delta(content="<think>")
    + delta(content="hm")
    + delta(content="</think>")
    + delta(content="Yes")
    + END,
    "thoughts after a call": delta(reasoning="a")
    + delta(tool_calls=[call(0, id="x", name="f", arguments="{}")])
    + delta(reasoning="b")
    + END,
    "calls": delta(tool_calls=[call(0, id="x", name="open", arguments="")])
    + delta(tool_calls=[call(0, arguments='{"a": ')])
    + delta(tool_calls=[call(0, arguments='"1"}'), call(1, id="y", name="shut", arguments="{}")])
    + delta("tool_calls")
    + DONE,
    "text, call, text": delta(content="A")
    + delta(tool_calls=[call(0, id="x", name="open", arguments="{}")])
    + delta(content="B")
    + END,
    "call's name in pieces": delta(tool_calls=[call(0, id="x", name="op")])
    + delta(tool_calls=[call(0, name="en", arguments="{}")])
    + END,
    "call without id": delta(tool_calls=[call(0, name="open", arguments="{}")]) + END,
    "call with a signature": delta(
        tool_calls=[
            call(0, id="x", name="open", arguments="{}", extra_content={"google": {"thought_signature": "s"}})
        ]
    )
    + END,
    "call without function": delta(tool_calls=[{"index": 0, "id": "x"}]) + END,
    "call's arguments as an object": delta(tool_calls=[call(0, id="x", name="open", arguments={"a": 1})]) + END,
    "content in parts": delta(content=[{"type": "text", "text": "A"}, {"type": "reference", "ids": [1]}, "B"])
    + END,
    "no choices": chunk() + delta(content="A") + END,
    "choices null": chunk(choices=None) + delta(content="A") + END,
    "delta null": chunk({"index": 0, "delta": None, "finish_reason": None}) + delta(content="A") + END,
    "no metadata": b'data: {"choices": [{"delta": {"content": "A"}}]}\n\n' + DONE,
    "empty model": chunk(model="") + delta(content="A") + END,
    "service tier": chunk(service_tier="flex") + delta(content="A") + END,
    "usage of DeepSeek": delta(content="A")
    + chunk(
        usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_cache_hit_tokens": 4}
    )
    + DONE,
    "comments and other fields": b": ping\n\nevent: message\nid: 7\nretry: 10\n"
    + delta(content="A")
    + b": ping\n"
    + END,
    "data in two lines": b'data: {"choices": [\ndata: {"delta": {"content": "A"}}]}\n\n' + END,
    "data without a space": delta(content="A").replace(b"data: ", b"data:") + END,
    "events after the end": END + delta(content="late"),
    "carriage returns": (delta(content="A") + delta(content="B") + END).replace(b"\n", b"\r"),
    "carriage returns and line feeds": (delta(content="A\u2028\x85B") + END).replace(b"\n", b"\r\n"),
    "byte order of surrogates": b'data: {"choices": [{"delta": {"content": "\\ud83d\\ude42"}}]}\n\n' + END,
}

TAGGED = {
    "tagged": delta(reasoning_content="a", reasoning="b")
    + delta(content="\n<think>\n")
    + delta(content="hm</think>\n")
    + delta(content="\nYes")
    + END
}

FAILURES: dict[str, bytes] = {
    "empty": b"",
    "end only": DONE,
    "not JSON": b"data: {nothing\n\n",
    "not JSON after text": delta(content="A") + b"data: {nothing\n\n",
    "not Unicode": b"data: \xff\xfe\n\n",
    "HTML": b"<!doctype html>\n<html></html>\n\n",
    "error": b'data: {"error": {"message": "busy", "code": "rate_limit_exceeded", "type": "x"}}\n\n',
    "error after text": delta(content="A") + b'data: {"error": {"message": "m", "type": "server_error"}}\n\n',
    "error of unknown kind": b'data: {"error": "broken"}\n\n',
    "error with a status": b'event: error\ndata: {"error": {"code": 503, "message": "overloaded"}}\n\n',
    "error about the context": b'data: {"error": {"message": "maximum context length is 5", "code": null}}\n\n',
}


ERRORS = [
    b"",
    b"<html>no</html>",
    b"[1]",
    b'{"error": {"message": "no such model", "code": "model_not_found", "type": "x"}}',
    b'{"error": {"message": "This model\'s maximum context length is 5 tokens."}}',
    b'{"error": {"message": "used up", "code": "insufficient_quota"}}',
    b'{"error": "text"}',
    b'{"message": "flat", "code": 7}',
]


def deep(levels: int) -> bytes:
    """Return an event with nested lists in a field that is kept."""
    return chunk({"index": 0, "delta": {}}, moderation="X").replace(b'"X"', b"[" * levels + b"]" * levels)


#: Streams that are read otherwise than by the library.
OWN: dict[str, bytes] = {
    "usage in each chunk": delta(content="Hello")
    + chunk(usage=USAGE | {"completion_tokens": 6, "total_tokens": 27})
    + delta("stop", content=", Zoë")
    + chunk(usage=USAGE)
    + DONE,
    "long usage": chunk(usage=USAGE | {f"n{number}": 1 for number in range(9_000)}) + END,
    "long refusal": delta(refusal="n" * 1_000) * 1_000 + END,
    "nameless calls": b"".join(delta(tool_calls=[{"index": index}]) for index in range(2_000)) + END,
    "white space after a thought": delta(content="A")
    + delta(reasoning_content="hm")
    + delta(content=" " * 100) * 100
    + delta(content="B")
    + END,
    "deep values": delta(content="Hello") + deep(300) + END,
    "dense values": delta(content="Hello") + chunk(extra=[[]] * 12_000) + END,
    "dense values of mixed lines": delta(content="Hello")
    + chunk(extra=[[]] * 12_000).replace(b"\n", b"\r\n\n", 1)
    + END,
}


def by_message(request: ChatRequest) -> RawReply | str:
    """Answer with the stream or the error that the message names, as in ``7 text`` and ``error 404 0``."""
    size, _, name = request.text.partition(" ")
    if size == "error":
        status, _, number = name.partition(" ")
        headers = {"content-type": "application/json", "x-should-retry": "false", "retry-after": "3"}
        return RawReply(body=[ERRORS[int(number)]], status=int(status), headers=headers)
    body = {**STREAMS, **FAILURES, **TAGGED, **OWN}.get(name)
    if body is None:
        return "ok"
    kind = "text/plain" if name.startswith("dense") else "text/event-stream"
    pieces = (body[at : at + int(size)] for at in range(0, len(body), int(size)))
    return RawReply(body=pieces, headers={"content-type": kind})


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIStandIn]:
    with OpenAIStandIn(reply=by_message) as server:
        yield server


async def outcome(model: Model, text: str = "hello") -> dict[str, Any]:
    """Return the answer and the kinds of its events, or the error, without times of this machine."""
    kinds: list[str] = []
    request = ModelRequest.user_text_prompt(text)
    try:
        async with model, model_request_stream(model, [request]) as stream:
            async for event in stream:
                kinds.append(event.event_kind)
            response = stream.get()
    except (*MODEL_ERRORS, ModelFailed) as error:
        return {"kinds": kinds, **described(error)}
    answer = {field.name: getattr(response, field.name) for field in fields(response)}
    for left_out in ("timestamp", "canonical_system"):
        del answer[left_out]
    return {"kinds": kinds, **answer}


def described(error: Exception) -> dict[str, Any]:
    told = explain(error)
    found = {name: value for name, value in vars(error).items() if name not in ("headers", "retry_after_date")}
    return {"error": type(error), "text": str(error), "told": (told.detail, told.headers), **found}


async def both(server: OpenAIStandIn, text: str, *, service: str = "openai-chat", name: str = "gpt-4.1") -> Any:
    """Return what both models make of the answer to a message."""
    outcomes = [await outcome(open_one(service, name, server), text) for open_one in (ours, theirs)]
    same_calls(outcomes)
    return outcomes


def same_calls(outcomes: Sequence[dict[str, Any]]) -> None:
    """Replace invented ids of calls."""
    for found in outcomes:
        for part in found.get("parts", ()):
            if isinstance(part, ToolCallPart) and part.tool_call_id.startswith("pyd_ai_"):
                part.tool_call_id = "invented"


@pytest.mark.parametrize("stream", [*STREAMS, *FAILURES])
async def test_stream_is_read_as_the_library_reads_it(stream: str, server: OpenAIStandIn) -> None:
    mine, library = await both(server, f"1000000 {stream}")

    assert mine == library
    assert ("error" in mine) == (stream in FAILURES)


@pytest.mark.parametrize("stream", ["usage in each chunk", "long usage"])
async def test_last_report_of_usage_is_the_usage(stream: str, server: OpenAIStandIn) -> None:
    mine, once = [
        await outcome(ours("openai-chat", "gpt-4.1", server), f"1000000 {name}") for name in (stream, "text")
    ]

    assert (mine["usage"].input_tokens, mine["usage"].output_tokens) == (21, 12)
    assert mine["usage"] == once["usage"]


async def test_deeply_nested_values_do_not_fail_a_response(server: OpenAIStandIn) -> None:
    found = await outcome(ours("openai-chat", "gpt-4.1", server), "1000000 deep values")

    assert "error" not in found
    assert "null" in json.dumps(found["provider_details"]["moderation"])


async def test_refusal_is_collected_up_to_a_limit(server: OpenAIStandIn) -> None:
    model = ours("openai-chat", "gpt-4.1", server)
    async with (
        model,
        model_request_stream(model, [ModelRequest.user_text_prompt("1000000 long refusal")]) as stream,
    ):
        with pytest.raises(ModelResponseTooLarge):
            async for _ in stream:
                pass

    assert stream.provider_details is not None
    assert len(stream.provider_details["refusal"]) == 66_000


@pytest.mark.parametrize("stream", ["nameless calls", "dense values", "dense values of mixed lines"])
async def test_stream_that_fills_the_memory_or_takes_long_is_refused(
    stream: str, server: OpenAIStandIn
) -> None:
    found = await outcome(ours("openai-chat", "gpt-4.1", server), f"1000000 {stream}")

    assert found["error"] is ModelResponseTooLarge


async def test_white_space_that_no_event_reports_is_limited(server: OpenAIStandIn) -> None:
    found = await outcome(ours("ollama", "qwen3:8b", server), "1000000 white space after a thought")

    assert found["error"] is ModelResponseTooLarge


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("name", ["qwen3:8b", "deepseek-r1", "gpt-oss:20b"])
async def test_profile_of_a_model_applies_to_its_stream(service: str, name: str, server: OpenAIStandIn) -> None:
    mine, library = await both(server, "1000000 tagged", service=service, name=name)

    assert mine == library


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize("stream", ["text", "calls", "carriage returns and line feeds", "data in two lines"])
async def test_size_of_the_pieces_does_not_matter(stream: str, size: int, server: OpenAIStandIn) -> None:
    mine, library = await both(server, f"{size} {stream}")

    assert mine == library


@pytest.mark.parametrize("number", range(len(ERRORS)))
@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 422, 429, 500, 503])
async def test_error_is_translated_as_the_library_translates_it(
    status: int, number: int, server: OpenAIStandIn
) -> None:
    mine, library = await both(server, f"error {status} {number}", name="gpt-4.1-minu")

    assert mine == library
    assert mine["told"]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_transient_failure_is_retried_once(status: int) -> None:
    fault = Fault(status=status, headers={"retry-after-ms": "1"})
    with OpenAIStandIn(faults=[fault]) as server:
        mine = await outcome(ours("openai-chat", "m", server))
    with OpenAIStandIn(faults=[fault, fault]) as refusing:
        failed = await outcome(ours("openai-chat", "m", refusing))

    assert mine["finish_reason"] == "stop"
    assert failed["status_code"] == status


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=400),
        Fault(status=429, headers={"x-should-retry": "false"}),
        Fault(status=429, headers={"retry-after": "121"}),
        Fault(status=503, headers={"retry-after": "Fri, 31 Dec 2099 23:59:59 GMT"}),
    ],
)
async def test_other_failure_is_not_retried(fault: Fault) -> None:
    with OpenAIStandIn(faults=[fault]) as server:
        failed = await outcome(ours("openai-chat", "m", server))

    assert failed["status_code"] == fault.status


async def test_server_may_request_a_retry_of_any_status() -> None:
    with OpenAIStandIn(faults=[Fault(status=400, headers={"x-should-retry": "true"})]) as server:
        mine = await outcome(ours("openai-chat", "m", server))

    assert mine["finish_reason"] == "stop"


PIXEL = BinaryContent(b"\x89PNG", media_type="image/png")
PDF = BinaryContent(b"%PDF-1", media_type="application/pdf")


def answered(provider: str, *parts: Any) -> ModelResponse:
    return ModelResponse(parts=list(parts), provider_name=provider)


def conversation(provider: str) -> list[ModelMessage]:
    """Return a conversation with each kind of content that the agent sends; the provider wrote its answers."""
    signature = {"extra_content": {"google": {"thought_signature": "s"}}}
    return [
        ModelRequest(parts=[SystemPromptPart("Be kind."), UserPromptPart("hello")]),
        answered(
            provider,
            ThinkingPart("hm", id="reasoning", provider_name=provider),
            TextPart("Hi"),
            TextPart("you"),
        ),
        ModelRequest(parts=[UserPromptPart(["look", TextContent("a.png:"), PIXEL])]),
        answered("another", ThinkingPart("foreign", provider_name="another"), TextPart("A pixel")),
        ModelRequest.user_text_prompt("and now?"),
        answered(
            provider,
            ThinkingPart("tagged", id="content", provider_name=provider),
            ToolCallPart("open", {"a": "ü"}, "call-1", provider_name=provider, provider_details=signature),
            ToolCallPart("open", '{"a": "2"}', "call-2"),
        ),
        ModelRequest(
            parts=[
                ToolReturnPart("open", {"found": ["ü", 1]}, "call-1"),
                ToolReturnPart("open", "no", "call-2", outcome="failed"),
            ]
        ),
        answered(provider),
        ModelRequest(parts=[UserPromptPart("go on")], instructions="Older instructions."),
        answered(provider, ToolCallPart("open", None, "call-3")),
        ModelRequest(parts=[ToolReturnPart("open", ["see", PIXEL], "call-3")], instructions="Be brief."),
    ]


TOOLS = [
    ToolDefinition(
        name="open",
        description="Opens.",
        parameters_json_schema={
            "type": "object",
            "properties": {"a": {"type": "string", "format": "uri", "minLength": 1}, "b": {"enum": [1, None]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ),
    ToolDefinition(name="strict", parameters_json_schema={"type": "object", "properties": {}}, strict=True),
    ToolDefinition(
        name="tree",
        parameters_json_schema={
            "type": "object",
            "properties": {
                "t": {"$ref": "#/$defs/T"},
                "p": {"prefixItems": [{"type": "integer"}], "type": "array"},
            },
            "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}}},
        },
    ),
]


async def body_of(model: Model, messages: list[ModelMessage], parameters: ModelRequestParameters) -> Any:
    """Return the body that the model sends, as JSON."""
    sent: list[bytes] = []

    async def keep(request: Any) -> None:
        sent.append(request.content)

    provider: Any = model.provider
    provider._own_http_client.event_hooks["request"].append(keep)
    settings = ModelSettings(max_tokens=7)
    async with (
        model,
        model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=parameters
        ) as stream,
    ):
        async for _ in stream:
            pass
    return json.loads(sent[0])


@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("openai-chat", "gpt-5"),
        ("openai-chat", "gpt-4.1"),
        ("openai-chat", "gpt-oss-20b"),
        ("openai-chat", "o1-mini"),
        ("openai-chat", "qwen3"),
        ("ollama", "qwen3:8b"),
        ("ollama", "gpt-oss:20b"),
        ("ollama", "llama3.3"),
        ("ollama", "gemma3"),
        ("ollama", "glm-4.7"),
        ("ollama", "deepseek-r1"),
        ("vllm", "Qwen/Qwen3-Coder-30B"),
        ("vllm", "Qwen/QwQ-32B"),
        ("vllm", "deepseek-ai/DeepSeek-R1"),
        ("vllm", "mistralai/Mixtral-8x7B"),
        ("vllm", "openai/gpt-oss-20b"),
        ("vllm", "zai-org/GLM-4.7"),
        ("vllm", "meta-llama/Llama-3.3"),
        ("vllm", "CohereLabs/c4ai-command-r"),
        ("vllm", "llava"),
    ],
)
async def test_conversation_is_sent_as_the_library_sends_it(
    service: str, name: str, server: OpenAIStandIn
) -> None:
    messages = conversation({"openai-chat": "openai"}.get(service, service))
    parameters = ModelRequestParameters(function_tools=TOOLS)
    mine, library = [
        await body_of(open_one(service, name, server), messages, parameters) for open_one in (ours, theirs)
    ]

    assert mine == library
    assert len(mine["tools"]) == len(TOOLS)


async def test_document_is_sent_as_the_library_sends_it(server: OpenAIStandIn) -> None:
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(["read", PDF])])]
    mine, library = [
        await body_of(open_one("openai-chat", "gpt-5", server), messages, ModelRequestParameters())
        for open_one in (ours, theirs)
    ]

    assert mine == library
    assert "tools" not in mine
    assert mine["max_completion_tokens"] == 7


async def test_connection_is_used_again_after_an_answer(server: OpenAIStandIn) -> None:
    connections: set[Any] = set()

    async def keep(response: Any) -> None:
        connections.add(response.extensions["network_stream"].get_extra_info("client_addr"))

    model = ours("openai-chat", "m", server)
    provider: Any = model.provider
    provider.client.event_hooks["response"].append(keep)
    async with model:
        for _ in range(3):
            async with model_request_stream(model, HELLO) as stream:
                async for _event in stream:
                    pass

    assert len(connections) == 1


async def test_abandoned_answer_closes_its_connection() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield delta(content="x" * 100)

    with OpenAIStandIn(reply=lambda _: RawReply(body=endless())) as server:
        model = ours("openai-chat", "m", server)
        async with model:
            async with model_request_stream(model, HELLO) as stream:
                async for _ in stream:
                    break
            pool: Any = cast("Any", model.provider).client._transport._pool

            assert pool.connections == []


async def test_other_content_is_refused(server: OpenAIStandIn) -> None:
    sound = BinaryContent(b"RIFF", media_type="audio/wav")
    model = ours("openai-chat", "m", server)
    async with model:
        with pytest.raises(UserError, match="cannot express a binary"):
            async with model_request_stream(model, [ModelRequest(parts=[UserPromptPart([sound])])]):
                pass
