"""The tools and instructions that a language model receives."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from torana.agent.prompt.tool_list import CORE
from torana.models.providers import open_model
from torana.testing import Answer, Call, ChatRequest, OpenAIStandIn, Rule, ScriptedModel

Start = Callable[..., Awaitable[Any]]
Begin = Callable[..., Awaitable["Talk"]]

#: An MCP server with as many tools as its argument says.
PROGRAM = """
import sys
from mcp.server import MCPServer

server = MCPServer("many")

def act(city: str, days: int = 3) -> str:
    return f"done in {city}"

for number in range(int(sys.argv[1])):
    server.add_tool(act, name=f"action_{number}", description=f"Do action {number} in a city for some days.")
server.add_tool(act, name="forecast", description="Predict the weather of a city.")
server.run()
"""


class Talk:
    """A conversation over HTTP, and the requests that the provider received."""

    def __init__(self, client: httpx2.AsyncClient, provider: OpenAIStandIn) -> None:
        self.client = client
        self._provider = provider

    @property
    def requests(self) -> tuple[ChatRequest, ...]:
        return self._provider.requests

    @property
    def tools(self) -> list[list[str]]:
        """Return the names of the tools of each request."""
        return [list(request.schemas) for request in self.requests]

    async def say(self, content: str, channel: str = "c") -> str:
        body = {"content": content, "channelId": channel, "userId": "ana"}
        response = await self.client.post("/message", json=body)
        return response.raise_for_status().json()["reply"]


def calling(*answers: Answer) -> Rule:
    """Return a rule that gives these answers in order, and then says ``done``."""
    left: Iterator[Answer] = iter(answers)
    return lambda _: next(left, "done")


def prompt_size(request: ChatRequest) -> int:
    """Return the characters of the instructions and of the tools, as they are sent."""
    tools = [{"type": "function"} | tool.model_dump() for tool in request.tools]
    instructions = [str(one["content"]) for one in request.messages if one["role"] == "system"]
    return len("".join(instructions)) + len(json.dumps(tools, ensure_ascii=False, separators=(",", ":")))


@pytest.fixture
def begin(start: Start) -> Iterator[Begin]:
    """``await begin(rule, setting=…)`` starts a gateway in front of a provider that answers by the rule."""
    with ExitStack() as stack:

        async def make(rule: Rule, **settings: Any) -> Talk:
            provider = stack.enter_context(OpenAIStandIn(reply=rule))
            model = open_model(
                ["openai-chat:m"],
                environ={},
                base_url=provider.url,
                api_key=None,
                builtin=ScriptedModel,
                max_response_bytes=1_000_000,
            )
            app, client = await start(model, **settings)
            for server in app.core.tooling.mcp.supervisors.values():
                await server.tried.wait()
            return Talk(client, provider)

        yield make


def servers(tmp_path: Path, *, number: int, tools: int) -> str:
    """Return settings of MCP servers, each with ``tools`` tools and ``forecast``."""
    program = tmp_path / "many.py"
    program.write_text(PROGRAM)
    one = {"command": sys.executable, "args": [str(program), str(tools)], "allow": ["forecast"]}
    return json.dumps({f"s{place}": one for place in range(number)})


async def test_hello_lists_only_the_core_tools(begin: Begin) -> None:
    talk = await begin(calling())

    await talk.say("hello")

    (request,) = talk.requests
    assert list(request.schemas) == list(CORE)
    assert prompt_size(request) <= 4_000


async def test_prompt_stays_small_with_many_skills_and_mcp_tools(begin: Begin, tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / "skills" / f"skill-{number}"
        folder.mkdir(parents=True)
        description = f"Plans trips to region {number} with trains and hotels. Use it for journeys. " * 4
        (folder / "SKILL.md").write_text(f"---\nname: skill-{number}\ndescription: {description}\n---\nPlan.\n")
    mcp = servers(tmp_path, number=3, tools=19)
    talk = await begin(calling(), skills_dir=tmp_path / "skills", mcp=mcp)

    await talk.say("hello")

    connected = (await talk.client.get("/v1/mcp")).json()["items"]
    assert [server["tools"] for server in connected] == [20] * 3

    (request,) = talk.requests
    instructions = str(request.messages[0]["content"])
    assert all(f"`skill-{number}`" in instructions for number in range(50))
    assert list(request.schemas) == list(CORE)
    assert prompt_size(request) <= 8_000


async def test_loaded_skill_appends_its_tools_for_the_rest_of_the_session(begin: Begin) -> None:
    talk = await begin(
        calling(
            [Call("load_skill", {"slug": "unit-converter"})],
            "ready",
            [Call("load_skill", {"slug": "calculator"})],
            [Call("calculate", {"expression": "6*7"})],
        )
    )

    await talk.say("how far is it")
    await talk.say("what is 6*7")
    await talk.say("hello", channel="another")

    core = list(CORE)
    first, second = [*core, "convert_units"], [*core, "convert_units", "calculate", "run_python"]
    assert talk.tools == [core, first, first, second, second, core]
    assert talk.requests[4].results == ["6*7 = 42"]


async def test_prompt_begins_with_the_whole_prompt_of_the_turn_before(begin: Begin) -> None:
    talk = await begin(calling([Call("load_skill", {"slug": "chance"})], "heads", "hello", "bye"))

    for content in ("flip a coin", "hi", "remember me", "bye"):
        await talk.say(content)

    first, *rest = [one.messages for one in talk.requests]
    for before, after in zip([first, *rest], rest, strict=False):
        assert after[: len(before)] == before
    assert talk.tools[1] == talk.tools[-1]


async def test_memories_follow_the_message_and_are_not_in_the_history(begin: Begin) -> None:
    remember = [Call("remember", {"text": "Ana likes green tea"})]
    talk = await begin(calling(remember, "noted", "green", "yes"))

    for content in ("I like tea", "which tea", "and coffee"):
        await talk.say(content)

    second, third = talk.requests[2].messages, talk.requests[3].messages
    assert str(second[-1]["content"]).startswith("which tea\n")
    assert str(second[-1]["content"]).endswith("- Ana likes green tea")
    assert "Ana likes green tea" not in str(second[0])
    assert third[: len(second) - 1] == second[:-1]
    assert third[len(second) - 1] == {"role": "user", "content": "which tea"}


async def test_reset_closes_the_tools(begin: Begin) -> None:
    talk = await begin(calling([Call("load_skill", {"slug": "chance"})]))

    await talk.say("flip a coin")
    await talk.say("/new")
    await talk.say("hello")

    assert talk.tools == [list(CORE), [*CORE, "pick_random"], list(CORE)]


async def test_search_opens_tools_of_mcp_servers(begin: Begin, tmp_path: Path) -> None:
    talk = await begin(
        calling(
            [Call("find_tools", {"query": "weather forecasts"})],
            [Call("s0_forecast", {"city": "Oslo"})],
        ),
        mcp=servers(tmp_path, number=1, tools=10),
    )

    await talk.say("will it rain in Oslo")

    found = json.loads(talk.requests[1].results[0])
    assert found["tools"] == {"s0_forecast": "Predict the weather of a city."}
    assert talk.tools == [list(CORE), [*CORE, "s0_forecast"], [*CORE, "s0_forecast"]]
    assert talk.requests[2].results[0].endswith("done in Oslo")


async def test_few_tools_of_mcp_servers_are_listed_directly(begin: Begin, tmp_path: Path) -> None:
    talk = await begin(calling(), mcp=servers(tmp_path, number=1, tools=2))

    await talk.say("hello")

    assert talk.tools == [[*CORE, "s0_action_0", "s0_action_1", "s0_forecast"]]


async def test_pinned_tools_are_always_listed(begin: Begin) -> None:
    talk = await begin(calling(), tools_pinned="calculate,query_*")

    await talk.say("hello")

    assert talk.tools == [[*CORE, "calculate", "query_json", "query_csv"]]


async def test_tool_that_is_not_listed_can_be_called(begin: Begin) -> None:
    talk = await begin(calling([Call("calculate", {"expression": "6*7"})]))

    await talk.say("what is 6*7")

    assert talk.requests[1].results == ["6*7 = 42"]


async def test_denied_tool_is_neither_found_nor_opened(begin: Begin) -> None:
    denied = json.dumps([{"tool": "calculate", "permission": "deny"}])
    talk = await begin(
        calling(
            [Call("find_tools", {"query": "calculate expression"})],
            [Call("load_skill", {"slug": "calculator"})],
        ),
        permissions=denied,
    )

    await talk.say("what is 6*7")

    assert "calculate" not in json.loads(talk.requests[1].results[0])["tools"]
    assert all("calculate" not in names for names in talk.tools)
