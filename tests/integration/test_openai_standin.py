import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionToolParam, ChatCompletionUserMessageParam
from pydantic_ai import Agent, AgentRunResultEvent, ModelRequest, ModelResponse, PartDeltaEvent, TextPart
from pydantic_ai.messages import ModelMessage, TextPartDelta
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from tests.integration.cli.conftest import heed_signals

from torana.models.failures import MODEL_ERRORS, explain
from torana.models.providers import open_model, probe
from torana.testing import Call, ChatRequest, Fault, OpenAIStandIn, ScriptedModel
from torana.testing.openai_server import RawReply, fixed_phrases

HELLO: ChatCompletionUserMessageParam = {"role": "user", "content": "hello there"}
#: Prevents the client from retrying after a pause.
ONCE = {"x-should-retry": "false"}


def tool_definition(name: str, **types: str) -> ChatCompletionToolParam:
    properties = {argument: {"type": kind} for argument, kind in types.items()}
    schema: dict[str, object] = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def request_body(text: str, *tools: ChatCompletionToolParam) -> ChatRequest:
    messages = [{"role": "user", "content": text}]
    return ChatRequest.model_validate({"model": "m", "messages": messages, "tools": tools})


CALCULATE = tool_definition("calculate", expression="string")


@pytest.fixture(scope="module")
def honest() -> Iterator[OpenAIStandIn]:
    """One server for all tests with default behaviour: ending a server takes 0.2 s."""
    with OpenAIStandIn() as server:
        yield server


@pytest.fixture
async def client(honest: OpenAIStandIn) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=honest.url, api_key="none") as client:
        yield client


def address(server: OpenAIStandIn) -> str:
    """Return the host and port."""
    return server.url.split("/")[2]


def open_configured(*servers: OpenAIStandIn) -> Model:
    """Open the first server as ``openai:`` and the second as ``ollama:``, tried in this order."""
    names = ["openai:first", "ollama:second"][: len(servers)]
    return open_model(
        names,
        environ={"OLLAMA_BASE_URL": servers[-1].url},
        base_url=servers[0].url,
        api_key=None,
        builtin=lambda: ScriptedModel(),
    )


def calculate(expression: str) -> str:
    """Compute."""
    return f"{expression} = four"


async def answer_of(model: Model, settings: ModelSettings | None = None) -> str:
    async with model:
        return (await Agent(model).run("hello there", model_settings=settings)).output


async def streamed(model: Model, text: str) -> tuple[list[str], str]:
    """Return the text pieces as they came, and the complete answer."""
    pieces: list[str] = []
    output = ""
    agent = Agent(model, tools=[calculate])
    async with model, agent.run_stream_events(text) as events:
        async for event in events:
            match event:
                case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                    pieces.append(piece)
                case AgentRunResultEvent(result=result):
                    output = result.output
                case _:
                    pass
    return pieces, output


async def test_server_answers_like_chat_completions(client: AsyncOpenAI):
    completion = await client.chat.completions.create(model="any", messages=[HELLO])

    assert completion.model == "any"
    assert completion.choices[0].finish_reason == "stop"
    assert (completion.choices[0].message.content or "").endswith("You said: hello there")
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 2
    assert completion.usage.total_tokens == 2 + completion.usage.completion_tokens


async def test_server_calls_an_offered_tool(client: AsyncOpenAI):
    completion = await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "what is 2 + 2?"}], tools=[CALCULATE]
    )

    assert completion.choices[0].finish_reason == "tool_calls"
    (call,) = completion.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "calculate"
    assert json.loads(call.function.arguments) == {"expression": "2 + 2"}


async def collect(client: AsyncOpenAI, text: str, *tools: ChatCompletionToolParam) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": text}],
        tools=tools,
        stream=True,
        stream_options={"include_usage": True},
    )
    return [chunk async for chunk in stream]


async def test_streamed_text_has_several_pieces_and_ends_with_usage(client: AsyncOpenAI):
    *chunks, finish, usage = await collect(client, "hello there")

    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert len(pieces) > 5
    assert "".join(pieces).endswith("You said: hello there")
    assert finish.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.prompt_tokens == 2


async def test_streamed_tool_call_has_several_pieces(client: AsyncOpenAI):
    _, *chunks, finish, _ = await collect(client, "what is 2 + 2 + 2 + 2?", CALCULATE)

    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    functions = [delta.function for delta in deltas if delta.function]
    assert deltas[0].id
    assert [function.name for function in functions if function.name] == ["calculate"]
    assert len(functions) > 2
    arguments = "".join(function.arguments or "" for function in functions)
    assert json.loads(arguments) == {"expression": "2 + 2 + 2 + 2"}
    assert finish.choices[0].finish_reason == "tool_calls"


async def test_stream_reports_usage_only_on_request(client: AsyncOpenAI):
    stream = await client.chat.completions.create(model="any", messages=[HELLO], stream=True)

    assert [chunk.usage async for chunk in stream if chunk.usage] == []


async def test_server_lists_its_model(client: AsyncOpenAI):
    assert [model.id async for model in client.models.list()] == ["stand-in"]


@pytest.mark.parametrize("messages", [[], "hello", [["hello"]]])
async def test_invalid_body_is_refused_with_400(client: AsyncOpenAI, messages: Any):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="any", messages=messages)

    assert caught.value.code == "invalid_body"


async def test_server_with_a_key_refuses_other_keys():
    with OpenAIStandIn(api_key="right") as server:
        async with AsyncOpenAI(base_url=server.url, api_key="right") as client:
            await client.models.list()
        async with AsyncOpenAI(base_url=server.url, api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="any", messages=[HELLO])
    assert server.requests == ()


async def test_custom_rule_decides_the_answers():
    def reply(request: ChatRequest) -> str | Sequence[Call]:
        if request.results:
            return f"They say: {' and '.join(request.results)}"
        return [Call("calculate", {"expression": "1"}), Call("calculate", {"expression": "2"})]

    with OpenAIStandIn(reply=reply) as server:
        model = open_configured(server)
        async with model:
            result = await Agent(model, tools=[calculate]).run("go")

    assert result.output == "They say: 1 = four and 2 = four"
    assert [len(request.messages) for request in server.requests] == [1, 4]


CSV = "sum of price in this CSV:\nname,price\nfig,2\n"


@pytest.mark.parametrize(
    ("text", "name", "types", "arguments"),
    [
        ("What is 17 % of 2,340?", "calculate", {}, {"expression": "17 % of 2,340"}),
        (
            "convert 12 km to miles",
            "convert_units",
            {"value": "number"},
            {"value": 12.0, "from_unit": "km", "to_unit": "miles"},
        ),
        ("what time is it in Tokyo?", "current_time", {}, {"place": "Tokyo"}),
        ("what time is it?", "current_time", {}, {}),
        ("how many days until 24 December?", "days_between", {}, {"start": "today", "end": "24 December"}),
        ("days between May 1 and May 9", "days_between", {}, {"start": "May 1", "end": "May 9"}),
        ("Remember that my cat is Tom", "remember", {}, {"text": "my cat is Tom"}),
        ("what do you know about cats?", "recall", {}, {"query": "cats"}),
        ("what is my cat called?", "recall", {}, {"query": "my cat called"}),
        ("What can you do?", "list_skills", {}, {}),
        ("count the words: one two", "count_text", {}, {"text": "one two"}),
        ("sort these lines:\nb\na", "sort_lines", {}, {"text": "b\na"}),
        ("remove the duplicates:\nb\nb", "unique_lines", {}, {"text": "b\nb"}),
        ('get $.a from this JSON: {"a": 1}', "query_json", {}, {"path": "$.a", "text": '{"a": 1}'}),
        (CSV, "query_csv", {}, {"aggregate": "sum", "column": "price", "text": "name,price\nfig,2"}),
        (
            "what did I say first?",
            "earlier_messages",
            {},
            {"speaker": "user", "count": 1, "order": "first"},
        ),
    ],
)
def test_fixed_phrase_calls_its_tool(text: str, name: str, types: dict[str, str], arguments: dict[str, Any]):
    assert fixed_phrases(request_body(text, tool_definition(name, **types))) == [Call(name, arguments)]


def test_content_in_parts_is_read_like_one_text():
    parts = [{"type": "text", "text": "what is "}, {"type": "text", "text": "2 + 2?"}]
    request = ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": parts}], "tools": [CALCULATE]}
    )

    assert fixed_phrases(request) == [Call("calculate", {"expression": "2 + 2"})]


def test_tool_that_is_not_offered_is_not_called():
    assert isinstance(fixed_phrases(request_body("what is 2 + 2?", tool_definition("convert_units"))), str)


def test_tool_that_is_not_listed_is_searched_and_then_called():
    search, calculate = tool_definition("find_tools"), tool_definition("calculate")
    asked = request_body("what is 2 + 2?", search)
    found = [
        {"role": "assistant", "tool_calls": [{"function": {"name": "find_tools"}}]},
        {"role": "tool", "content": "calculate"},
    ]
    then = asked.model_copy(update={"messages": [*asked.messages, *found]})
    opened = then.model_copy(update={"tools": request_body("", search, calculate).tools})

    assert fixed_phrases(asked) == [Call("find_tools", {"query": "calculate"})]
    assert fixed_phrases(opened) == [Call("calculate", {"expression": "2 + 2"})]
    assert isinstance(fixed_phrases(then), str)


async def test_agent_run_streams_the_tool_result():
    with OpenAIStandIn() as server:
        pieces, output = await streamed(open_configured(server), "what is 2 + 2?")

    assert output == "2 + 2 = four"
    assert len(pieces) > 2


async def test_history_is_sent_as_the_library_sends_it():
    history: list[ModelMessage] = [
        ModelRequest.user_text_prompt("what is 1 + 1?"),
        ModelResponse(parts=[TextPart("“two” — 二 🙂")]),
    ]
    with OpenAIStandIn() as server:
        plain = OpenAIChatModel("first", provider=OpenAIProvider(base_url=server.url, api_key="none"))
        for model in (plain, open_configured(server)):
            agent = Agent(model, tools=[calculate], instructions="Be brief.")
            async with model, agent.run_stream_events("what is 2 + 2?", message_history=history) as events:
                async for _ in events:
                    pass

    bodies = [request.model_dump() for request in server.requests]
    for body in bodies:
        # A call's id is new each time.
        body["messages"] = [
            {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
            for message in body["messages"]
        ]
    assert len(bodies) == 4
    assert bodies[:2] == bodies[2:]
    assert [message["role"] for message in bodies[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
    ]


async def test_call_and_its_result_arrive_together():
    with OpenAIStandIn() as server:
        await streamed(open_configured(server), "what is 2 + 2?")

    _, assistant, tool = server.requests[-1].messages
    (call,) = assistant["tool_calls"]
    assert call["id"] == tool["tool_call_id"]
    assert json.loads(call["function"]["arguments"]) == {"expression": "2 + 2"}


async def test_request_settings_are_part_of_the_body():
    seen: list[dict[str, Any]] = []

    def reply(request: ChatRequest) -> str:
        seen.append(request.model_dump())
        return "ok"

    with OpenAIStandIn(reply=reply) as server:
        model = open_configured(server)
        async with model:
            await Agent(model).run("hello", model_settings={"extra_body": {"model": "another"}})

    assert seen[0]["model"] == "another"
    assert seen[0]["messages"] == [{"role": "user", "content": "hello"}]


async def test_requests_equal_those_of_the_client_library():
    def weather(city: str, days: int = 1) -> str:
        """Forecast the weather."""
        return f"{city}: fine for {days} days"

    def plain(server: OpenAIStandIn) -> Model:
        return OpenAIChatModel("m", provider=OpenAIProvider(base_url=server.url, api_key="k"))

    bodies: list[list[dict[str, Any]]] = []
    for open_one in (open_configured, plain):
        with OpenAIStandIn() as server:
            model = open_one(server)
            async with model:
                agent = Agent(model, tools=[weather], instructions="Be kind.")
                for _ in range(2):  # the second request uses cached tool schemas
                    async with agent.run_stream_events("hello there") as events:
                        async for _ in events:
                            pass
            bodies.append([request.model_dump(exclude={"model"}) for request in server.requests])

    ours, theirs = bodies
    assert [request["tools"][0]["function"]["name"] for request in ours] == ["weather", "weather"]
    assert ours == theirs


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
async def test_next_model_is_tried_when_the_first_fails(status: int):
    with OpenAIStandIn(faults=[Fault(status=status)]) as first, OpenAIStandIn() as second:
        model = open_configured(first, second)
        async with model:
            result = await Agent(model).run("hello there")

    assert result.response.model_name == "second"
    assert (len(first.requests), len(second.requests)) == (1, 1)


@pytest.mark.parametrize(
    "fault",
    [Fault(status=200), Fault(malformed=True), Fault(cut_after=0), Fault(cut_after=1)],
    ids=["no answer", "half an answer", "cut at once", "cut before the first word"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_next_model_is_tried_when_the_first_sends_no_answer(fault: Fault, stream: bool):
    with OpenAIStandIn(faults=[fault]) as first, OpenAIStandIn() as second:
        model = open_configured(first, second)
        answer = (await streamed(model, "hello there"))[1] if stream else await answer_of(model)

    assert answer.endswith("You said: hello there")
    assert len(second.requests) == 1


async def test_second_model_is_not_called_while_the_first_answers():
    with OpenAIStandIn() as first, OpenAIStandIn() as second:
        await answer_of(open_configured(first, second))

    assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_unreachable_server_is_skipped():
    with OpenAIStandIn() as gone:
        pass
    with OpenAIStandIn() as second:
        assert (await answer_of(open_configured(gone, second))).endswith("You said: hello there")


async def test_failed_list_reports_each_model():
    limited = Fault(status=429, headers={"Retry-After": "7"})
    with (
        OpenAIStandIn(faults=[limited]) as first,
        OpenAIStandIn(faults=[Fault(status=500, message="boom")]) as second,
        pytest.raises(MODEL_ERRORS) as caught,
    ):
        await answer_of(open_configured(first, second))

    failure = explain(caught.value)
    here, there = (address(server) for server in (first, second))
    assert failure.detail == (
        f"all models failed. first: rate limited by {here}; try again in 7 s | "
        f"second: {there} answered 500: boom"
    )
    assert failure.headers == {"Retry-After": "7"}


async def test_single_model_is_retried_once_after_a_temporary_failure():
    with OpenAIStandIn(faults=[Fault(status=500, headers={"retry-after-ms": "1"})]) as server:
        assert (await answer_of(open_configured(server))).endswith("You said: hello there")

    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            Fault(status=401),
            (
                "the key was refused by {server}: check TORANA_MODEL_API_KEY or the provider's own variable, "
                "such as OPENAI_API_KEY"
            ),
        ),
        (
            Fault(status=404, code="model_not_found"),
            '{server} does not have the model "first"; check TORANA_MODEL and TORANA_MODEL_BASE_URL',
        ),
        (
            Fault(status=429, headers={"Retry-After": "7", **ONCE}),
            "rate limited by {server}; try again in 7 s",
        ),
        (Fault(status=500, message="boom", headers=ONCE), "{server} answered 500: boom"),
        (
            Fault(status=400, code="context_length_exceeded"),
            (
                "the request exceeds the model's context window at {server}; set TORANA_CONTEXT_WINDOW to the "
                "model's window, or start the server with a larger one"
            ),
        ),
        (
            Fault(status=200),
            (
                "the provider's response is not a language model's response; "
                "check that TORANA_MODEL_BASE_URL is "
                "its API's address"
            ),
        ),
        (
            Fault(malformed=True),
            "the provider's answer is not valid JSON; check that TORANA_MODEL_BASE_URL is its API's address",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_each_fault_is_explained(fault: Fault, told: str, stream: bool):
    with OpenAIStandIn(faults=[fault]) as server, pytest.raises(MODEL_ERRORS) as caught:
        await (streamed(open_configured(server), "hello") if stream else answer_of(open_configured(server)))

    assert explain(caught.value).detail == told.format(server=address(server))


@pytest.mark.parametrize("data", ["[" * 9_000, '{"created":' + "9" * 5_000 + "}"], ids=["deep", "digits"])
async def test_json_that_python_does_not_read_is_explained(data: str):
    reply = RawReply(body=[f"data: {data}\n\n".encode()])
    with OpenAIStandIn(reply=lambda _: reply) as server, pytest.raises(MODEL_ERRORS) as caught:
        await streamed(open_configured(server), "hello")

    assert "is not valid JSON" in explain(caught.value).detail


async def test_cut_stream_is_explained():
    with OpenAIStandIn(faults=[Fault(cut_after=3)]) as server, pytest.raises(MODEL_ERRORS) as caught:
        await streamed(open_configured(server), "hello")

    server_name = address(server)
    assert explain(caught.value).detail == (
        f"the connection to {server_name} broke before the answer was complete"
    )


async def test_slow_first_byte_is_explained():
    hasty = ModelSettings(timeout=0.1, max_retries=0)
    with OpenAIStandIn(faults=[Fault(delay=60)]) as server, pytest.raises(MODEL_ERRORS) as caught:
        await answer_of(open_configured(server), hasty)

    assert explain(caught.value).detail == f"{address(server)} did not answer in time"


async def test_unreachable_server_is_explained():
    with OpenAIStandIn() as gone:
        pass

    with pytest.raises(MODEL_ERRORS) as caught:
        await answer_of(open_configured(gone))

    server_name = address(gone)
    assert explain(caught.value).detail == (
        f"connection refused to {server_name}: is the server running there?"
    )


async def test_probe_makes_one_real_call():
    with OpenAIStandIn() as server:
        result = await probe(open_configured(server))

    assert result.model == "first"
    assert [request.text for request in server.requests] == ["Answer with one word: ready"]
    assert server.requests[0].stream


async def test_probed_model_can_be_used_afterwards():
    with OpenAIStandIn() as server:
        model = open_configured(server)
        await probe(model)

        assert (await answer_of(model)).endswith("You said: hello there")


async def test_server_runs_as_a_module_and_prints_its_address():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "torana.testing.openai_server"),
        stdout=PIPE,
        stderr=PIPE,
        preexec_fn=heed_signals,
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        models = [model.id async for model in client.models.list()]
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()

    assert models == ["stand-in"]
    assert (process.returncode, errors) == (0, b"")
