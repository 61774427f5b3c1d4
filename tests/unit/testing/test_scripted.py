import asyncio

import pytest
from pydantic_ai import Agent, PartDeltaEvent, PartStartEvent, TextPart
from pydantic_ai.messages import TextPartDelta, ToolCallPart

from torana.testing import ScriptedModel


def double(number: int) -> str:
    """Double it."""
    return str(number * 2)


async def pieces_of(model: ScriptedModel) -> list[str]:
    """Return the text pieces of a streamed run."""
    pieces: list[str] = []
    async with Agent(model, tools=[double]).run_stream_events("go") as events:
        async for event in events:
            match event:
                case PartStartEvent(part=TextPart(content=piece)):
                    pieces.append(piece)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                    pieces.append(piece)
                case _:
                    pass
    return pieces


async def test_model_plays_calls_and_texts_in_order():
    model = ScriptedModel([ToolCallPart("double", {"number": 4})], ["It is ", "eight."])

    result = await Agent(model, tools=[double]).run("go")

    assert result.output == "It is eight."
    assert len(model.requests) == 2
    assert [tool.name for tool in model.requests[0].info.function_tools] == ["double"]
    assert getattr(model.requests[1].messages[-1].parts[0], "content", None) == "8"


async def test_model_streams_the_given_pieces():
    calls = [ToolCallPart("double", {"number": 1}), ToolCallPart("double", {"number": 2})]
    model = ScriptedModel(calls, ["It is ", "done", "."])

    assert await pieces_of(model) == ["It is ", "done", "."]
    assert [getattr(part, "content", None) for part in model.requests[1].messages[-1].parts] == ["2", "4"]


async def test_model_can_send_text_before_a_call():
    model = ScriptedModel(["Let me see. ", ToolCallPart("double", {"number": 4})], "Eight.")

    result = await Agent(model, tools=[double]).run("go")

    kinds = [part.part_kind for part in result.all_messages()[1].parts]
    assert kinds == ["text", "tool-call"]


async def test_model_waits_for_an_event_of_the_script():
    gate = asyncio.Event()
    pieces: list[str] = []
    agent = Agent(ScriptedModel(["before ", gate, "after"]))

    async with agent.run_stream_events("go") as events:
        async for event in events:
            match event:
                case PartStartEvent(part=TextPart(content=piece)):
                    pieces.append(piece)
                    # Without this the script would never continue, and the test would not end.
                    gate.set()
                case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                    assert gate.is_set()
                    pieces.append(piece)
                case _:
                    pass

    assert pieces == ["before ", "after"]


@pytest.mark.parametrize("pieces", [[ConnectionError("gone")], ["a word, ", ConnectionError("gone")]])
async def test_model_raises_an_error_of_the_script(pieces: list[str | Exception]):
    with pytest.raises(ConnectionError, match="gone"):
        await Agent(ScriptedModel(pieces)).run("go")
    with pytest.raises(ConnectionError, match="gone"):
        await pieces_of(ScriptedModel(pieces))


async def test_request_after_the_last_answer_fails_the_test():
    agent = Agent(ScriptedModel("only this"))
    await agent.run("go")

    with pytest.raises(AssertionError, match="the script has 1 answers, but the model received request 2"):
        await agent.run("go")
