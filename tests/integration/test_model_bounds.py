"""Oversized and invalid responses of a provider's server, as models and embedders handle them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any

import pytest
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models import Model

from torana.errors import ModelFailed, ModelResponseTooLarge
from torana.models.failures import MODEL_ERRORS, explain
from torana.models.providers import open_embedder, open_model
from torana.testing import Call, ChatRequest, OpenAIStandIn, ScriptedModel
from torana.testing.openai_server import RawReply, Reply, Rule

LIMIT = 10_000
HELLO = [ModelRequest.user_text_prompt("hello")]
JSON = {"content-type": "application/json"}


def open_configured(server: OpenAIStandIn, *, limit: int = LIMIT) -> Model:
    return open_model(
        ["openai-chat:m"],
        environ={},
        base_url=server.url,
        api_key=None,
        builtin=ScriptedModel,
        max_response_bytes=limit,
    )


async def streamed(rule: Rule, *, limit: int = LIMIT) -> ModelResponse:
    """Return the model's response by the rule, streamed as for the agent. Raise ``ModelFailed`` on errors."""
    with OpenAIStandIn(reply=rule) as server:
        try:
            async with (
                open_configured(server, limit=limit) as model,
                model_request_stream(model, HELLO) as stream,
            ):
                async for _ in stream:
                    pass
                return stream.get()
        except (*MODEL_ERRORS, ModelFailed) as error:
            raise explain(error) from error


def event(**fields: Any) -> bytes:
    """Return an event of a stream with these fields in place of the usual ones."""
    usual: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [],
    }
    return f"data: {json.dumps({**usual, **fields})}\n\n".encode()


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + b"data: [DONE]\n\n"


def calls(number: int, *, name: str = "f", call_id: str = "c") -> list[dict[str, Any]]:
    return [
        {"index": n, "id": f"{call_id}{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n in range(number)
    ]


TOO_LARGE: dict[str, Callable[[], Iterator[bytes]]] = {
    "text": lambda: repeat(delta(content="x" * 100)),
    "text in one event": lambda: iter([delta(content="x" * (LIMIT + 1)), END]),
    "thinking": lambda: repeat(delta(reasoning_content="x" * 100)),
    "refusal": lambda: repeat(delta(refusal="x" * 100)),
    "arguments": lambda: repeat(
        delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 100}}])
    ),
    "calls": lambda: iter([delta(tool_calls=calls(10_000)), END]),
    "a few bytes in very many calls": lambda: iter([*(delta(tool_calls=[one]) for one in calls(300)), END]),
    "a call's name": lambda: iter([delta(tool_calls=calls(1, name="f" * LIMIT)), END]),
    "a call's id": lambda: iter([delta(tool_calls=calls(1, call_id="c" * LIMIT)), END]),
    "an event without its end": lambda: repeat(b"data: " + b"x" * 100 + b"\n"),
    "a line without its end": lambda: repeat(b"x" * 100),
    "events without content": lambda: repeat(event()),
}


@pytest.mark.parametrize("attack", TOO_LARGE)
async def test_response_that_is_too_large_is_cut_off(attack: str) -> None:
    read: list[bytes] = []

    def body() -> Iterator[bytes]:
        for piece in TOO_LARGE[attack]():
            read.append(piece)
            yield piece

    with pytest.raises(ModelResponseTooLarge):
        await streamed(lambda _: RawReply(body=body()))

    assert sum(map(len, read)) < 10_000_000  # although the body is endless


MANY_VALUES: dict[str, Any] = {
    "calls": [{"index": 0, "delta": {"tool_calls": [{}] * 30_000}, "finish_reason": None}],
    "lists": [[]] * 30_000,
}


@pytest.mark.parametrize("kind", MANY_VALUES)
async def test_event_with_very_many_values_is_refused_before_it_is_read(kind: str) -> None:
    with pytest.raises(ModelResponseTooLarge, match="JSON values"):
        await streamed(lambda _: RawReply(body=[event(choices=MANY_VALUES[kind]), END]), limit=1_000_000)


async def test_calls_whose_arguments_have_very_many_values_are_refused() -> None:
    def rule(_: ChatRequest) -> list[Call]:
        return [Call("f", {"numbers": [1] * 4_000}), Call("g", {"texts": ["[1, 2]"] * 7_000})]

    with pytest.raises(ModelResponseTooLarge, match="JSON values"):
        await streamed(rule, limit=1_000_000)


async def test_long_event_with_few_values_is_accepted() -> None:
    text = "[1, 2]\r\n\r\n" * 20_000

    response = await streamed(lambda _: RawReply(body=[delta(content=text), END]), limit=1_000_000)

    assert response.text == text


@pytest.mark.parametrize("field", ["id", "model", "service_tier", "moderation"])
async def test_giant_field_besides_the_text_is_refused(field: str) -> None:
    giant: Any = {"results": ["x" * 70_000]} if field == "moderation" else "x" * 70_000
    chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}], field: giant}

    with pytest.raises(ModelFailed):
        await streamed(lambda _: RawReply(body=[event(**chunk), b"data: [DONE]\n\n"]), limit=1_000_000)


async def test_response_at_the_limit_is_accepted() -> None:
    response = await streamed(lambda _: "x" * (LIMIT - 100))

    assert response.text == "x" * (LIMIT - 100)


@pytest.mark.parametrize("name", ["n" * 8_000, "\ud800" + "é" * 4_000])
async def test_long_name_of_a_model_is_cut(name: str) -> None:
    said = {"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}
    body = [event(model=name, choices=[said]), b"data: [DONE]\n\n"]

    response = await streamed(lambda _: RawReply(body=body), limit=100_000)

    assert response.text == "hello"
    assert response.model_name is not None
    assert 199 <= len(response.model_name.encode()) <= 200


async def test_compressed_response_is_refused_unread() -> None:
    bomb = gzip.compress(b"\n" * 10_000_000)

    with pytest.raises(ModelResponseTooLarge, match="'gzip'"):
        await streamed(lambda _: RawReply(body=[bomb], headers={**JSON, "content-encoding": "gzip"}))


async def test_error_body_is_read_partly_and_the_status_reported() -> None:
    read: list[bytes] = []

    def body() -> Iterator[bytes]:
        for piece in repeat(b"x" * 10_000):
            read.append(piece)
            yield piece

    with pytest.raises(ModelFailed, match="answered 400"):
        await streamed(lambda _: RawReply(body=body(), status=400, headers=JSON))

    assert sum(map(len, read)) < 10_000_000


async def test_response_without_streaming_has_the_same_limit() -> None:
    with OpenAIStandIn(reply=lambda _: Reply(pieces=["x" * 1_000] * 15)) as server:
        async with open_configured(server) as model:
            with pytest.raises(ModelResponseTooLarge):
                await model_request(model, HELLO)


ABSURD: list[Mapping[str, Any]] = [
    {"prompt_tokens": 2**63, "completion_tokens": 2**63, "total_tokens": 2**64},
    {"prompt_tokens": -5, "completion_tokens": -(10**30), "total_tokens": 0},
    {"prompt_tokens": 1.5, "completion_tokens": 1e300, "total_tokens": 3},
    {"prompt_tokens": "many", "completion_tokens": None, "total_tokens": []},
    {"prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2**70}},
    {"prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": "x"}},
    {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": -(2**70)}},
    {"prompt_tokens": 3, "completion_tokens": 4, "cost": float("nan")},
    {str(number): number for number in range(1_000)},
    {},
]


@pytest.mark.filterwarnings("ignore::pydantic_ai.UsageExtractionFailedWarning")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("usage", ABSURD, ids=range(len(ABSURD)))
async def test_absurd_usage_is_corrected_or_a_model_failure(usage: Mapping[str, Any]) -> None:
    try:
        response = await streamed(lambda _: Reply(answer="fine", usage=usage))
    except ModelFailed:
        return

    used = response.usage
    assert response.text == "fine"
    assert 0 <= used.input_tokens <= 100_000_000
    assert 0 <= used.output_tokens <= 100_000_000
    assert all(type(number) is int and 0 <= number <= 100_000_000 for number in used.details.values())
    assert len(used.details) <= 32


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 1_000, "completion_tokens": -900},
        {"prompt_tokens": 1_000, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": -900}},
    ],
    ids=["output", "details"],
)
async def test_negative_number_of_tokens_does_not_reduce_the_others(usage: Mapping[str, Any]) -> None:
    response = await streamed(lambda _: Reply(answer="fine", usage=usage))

    assert (response.usage.input_tokens, response.usage.output_tokens) == (1_000, 0)


@pytest.mark.parametrize("created", [10**40, -(10**40), "soon"])
async def test_absurd_time_is_ignored_or_a_model_failure(created: object) -> None:
    def rule(_: ChatRequest) -> RawReply:
        return RawReply(body=[event(created=created), delta(content="hi"), END])

    try:
        response = await streamed(rule)
    except ModelFailed:
        return
    assert response.text == "hi"


@pytest.mark.parametrize("first", [5, True, "text", [], [1]])
async def test_event_that_is_no_object_is_a_model_failure(first: object) -> None:
    body = [f"data: {json.dumps(first)}\n\n".encode(), delta(content="hi"), END]

    with pytest.raises(ModelFailed):
        await streamed(lambda _: RawReply(body=body))


@pytest.mark.parametrize(
    "function",
    [{"name": 5, "arguments": "{}"}, {"name": True, "arguments": "{}"}, {"name": "f", "arguments": [1]}],
)
async def test_tool_call_with_values_of_other_types_is_a_model_failure(function: dict[str, Any]) -> None:
    call = {"index": 0, "id": "c", "function": function}

    with pytest.raises(ModelFailed, match="TORANA_MODEL_BASE_URL"):
        await streamed(lambda _: RawReply(body=[delta(tool_calls=[call]), END]))


@pytest.mark.parametrize("odd", [5, [1], {"a": 1}])
async def test_ids_and_names_that_are_no_texts_are_left_out(odd: object) -> None:
    call = {"index": 0, "id": odd, "function": {"name": "f", "arguments": "{}"}}
    body = [event(id=odd, model=odd), delta(tool_calls=[call]), END]

    response = await streamed(lambda _: RawReply(body=body))

    assert (response.model_name, response.provider_response_id) == ("m", "c")
    assert isinstance(response.tool_calls[0].tool_call_id, str)


@pytest.mark.parametrize("reply", [[Call("f", {"a": 1})], "text"])
async def test_usage_of_a_rule_is_reported(reply: Any) -> None:
    response = await streamed(lambda _: Reply(answer=reply, usage={"prompt_tokens": 7, "completion_tokens": 3}))

    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize(
    "vector",
    [[], [0.5] * 20_000, [None], ["x"], "x", [[0.5]], None],
    ids=["none", "long", "null", "text", "string", "nested", "missing"],
)
async def test_invalid_vector_is_a_model_failure(vector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": vector}]}

    def absurd(_: object) -> object:
        return body

    monkeypatch.setattr("torana.testing.openai_server.server.embeddings", absurd)
    with OpenAIStandIn() as server:
        embedder = open_embedder("openai:e", models=[], environ={}, base_url=server.url, api_key="none")
        async with embedder:
            with pytest.raises(ModelFailed):
                await embedder.vectors(["hello"], query=False)
