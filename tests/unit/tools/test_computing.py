"""The processes and threads in which tools run, and their limits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage
from tests.unit.workers import jobs
from tests.waiting import eventually

from torana.messages import Turn
from torana.tools import ToolContext, ToolError
from torana.tools.base import ToolGroup, tool
from torana.tools.builtin.json_query import query_json
from torana.tools.computing import Computing
from torana.tools.threads import ToolThreads
from torana.tools.toolset import build_toolset
from torana.workers.worker import CallFailed

#: The filter follows its path of 60 names for each of 360,000 values.
COSTLY = {
    "text": "[[" + ",".join("0" * 12_000) + "]," + '{"a":' * 60 + "0" + "}" * 60 + "]",
    "path": f"$[{','.join('*' * 30)}][?$[1]{'.a' * 60}.b]",
}
CHEAP = {"text": '{"a": 17}', "path": "$.a"}


@pytest.fixture
async def quick() -> AsyncGenerator[Computing]:
    """One second of processor time for a call, and no waiting."""
    computing = Computing(seconds=1, wait=0)
    yield computing
    await computing.close()


async def test_call_that_takes_too_long_is_stopped_with_a_reason(quick: Computing) -> None:
    with pytest.raises(ToolError, match="more than 1 s of processor time"):
        await quick.run(query_json, COSTLY, user="ana")


async def test_call_that_takes_too_much_memory_is_stopped_with_a_reason(quick: Computing) -> None:
    with pytest.raises(ToolError, match="too much memory"):
        await quick.run(jobs.take_memory, {"size": 1 << 40}, user="ana")


async def test_call_whose_process_dies_fails_with_a_reason(quick: Computing) -> None:
    with pytest.raises(ToolError, match="ended early"):
        await quick.run(jobs.die, {}, user="ana")


async def test_errors_of_the_tool_keep_their_type(quick: Computing) -> None:
    with pytest.raises(ToolError, match="There is no value at"):
        await quick.run(query_json, {"text": "{}", "path": "$.a"}, user="ana")
    with pytest.raises(CallFailed, match="LookupError: nothing"):
        await quick.run(jobs.fail, {"message": "nothing"}, user="ana")


async def test_calls_of_one_user_do_not_delay_other_users() -> None:
    computing = Computing(seconds=1)
    ended: list[str] = []

    async def call(user: str, arguments: dict[str, Any]) -> None:
        try:
            await computing.run(query_json, arguments, user=user)
        except ToolError:
            ended.append(f"{user} was stopped")
        else:
            ended.append(user)

    calls = [asyncio.create_task(call("mallory", COSTLY)) for _ in range(2)]
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(call("alice", CHEAP)))
    await asyncio.gather(*calls)
    await computing.close()

    assert ended == ["alice", "mallory was stopped", "mallory was stopped"]


async def test_call_that_waits_too_long_is_refused_with_a_reason(quick: Computing) -> None:
    async with quick.slot("ana"):
        with pytest.raises(ToolError, match="Too many calls were made at once"):
            await quick.run(query_json, CHEAP, user="ana")
        assert await quick.run(query_json, CHEAP, user="bob") == "17"
    assert await quick.run(query_json, CHEAP, user="ana") == "17"


def context(user: str | None = None) -> RunContext[ToolContext]:
    turn = Turn(
        id="turn_1",
        owner="gateway",
        session_id="ses_1",
        channel="c",
        seq=1,
        principal="local",
        user=user,
        content="",
        state="running",
        attempt=1,
        created_at=datetime.now(UTC),
    )
    deps = ToolContext(
        turn=turn, may_recall=True, timezone=ZoneInfo("UTC"), clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    return RunContext(deps=deps, model=TestModel(), usage=RunUsage(), max_retries=1)


async def call_tool(
    toolset: FunctionToolset[ToolContext], name: str, user: str | None = None, **arguments: Any
) -> Any:
    tools = await toolset.get_tools(context(user))
    return await toolset.call_tool(name, arguments, context(user), tools[name])


class Group(ToolGroup):
    """A tool group with a coroutine function of the name of the one that runs snippets, and a slow function."""

    def __init__(self, block: Callable[[], int] = os.getpid) -> None:
        self.block = block
        self.running = 0
        self.most = 0

    @tool(idempotent=True)
    def slow(self) -> int:
        """Block."""
        return self.block()

    @tool(idempotent=True)
    async def run_python(self, code: str) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return code


async def test_expensive_tools_run_in_worker_processes(computing: Computing) -> None:
    toolset = build_toolset([], own=[], computing=computing)

    assert await call_tool(toolset, "query_json", **CHEAP) == "17"
    assert await call_tool(toolset, "query_csv", text="a,b\n1,2", select=["b"]) == "b\n2\n(1 row)"
    assert await call_tool(toolset, "sort_lines", text="b\na", order="descending") == "b\na"


async def test_quick_tools_start_no_process(computing: Computing) -> None:
    toolset = build_toolset([], own=[], computing=computing)
    await computing.close()  # no process can start from now on

    assert await call_tool(toolset, "calculate", expression="17 % of 2,340") == "17 % of 2,340 = 397.8"
    assert (await call_tool(toolset, "current_time")).startswith("It is 00:00")
    with pytest.raises(ToolError):
        await call_tool(toolset, "query_json", **CHEAP)


async def test_snippets_of_one_user_run_one_after_the_other(computing: Computing) -> None:
    group = Group()
    toolset = build_toolset([group], own=[], computing=computing)
    await asyncio.gather(*(call_tool(toolset, "run_python", "ana", code="1") for _ in range(5)))
    assert group.most == 1


class Blocked:
    """A function that blocks its thread until it is released, and counts the threads."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.threads = 0

    def tool(self) -> Callable[[], int]:
        def block() -> int:
            """Block."""
            self.threads += 1
            self.release.wait(60)
            return os.getpid()

        return block


async def test_blocked_tools_of_one_user_leave_threads_for_others(computing: Computing) -> None:
    blocked = Blocked()
    toolset = build_toolset([], own=[blocked.tool()], computing=computing)
    calls = [asyncio.create_task(call_tool(toolset, "block", "mallory")) for _ in range(40)]
    await asyncio.to_thread(eventually, lambda: blocked.threads == 4)

    # Neither the other user's tools nor other work in threads waits for the blocked ones.
    assert await call_tool(toolset, "calculate", "alice", expression="6 * 7") == "6 * 7 = 42"
    assert await asyncio.to_thread(os.getpid) == os.getpid()
    assert blocked.threads == 4

    blocked.release.set()
    assert await asyncio.gather(*calls) == [os.getpid()] * 40


async def test_gateway_has_few_threads_for_its_own_tools(computing: Computing) -> None:
    blocked = Blocked()
    toolset = build_toolset([Group(blocked.tool())], own=[os.sched_yield], computing=computing)
    calls = [
        asyncio.create_task(call_tool(toolset, "slow", user))
        for user in ("ana", "ben", "cem")
        for _ in range(3)
    ]
    await asyncio.to_thread(eventually, lambda: blocked.threads == 2)

    assert await call_tool(toolset, "sched_yield", "ana") is None  # the operator's tools have their own
    assert blocked.threads == 2

    blocked.release.set()
    assert await asyncio.gather(*calls) == [os.getpid()] * 9


async def free(threads: ToolThreads, user: str) -> bool:
    """Return whether the user can get a thread."""
    try:
        return await threads.run(partial(asyncio.sleep, 0, True), user=user)
    except ToolError:
        return False


async def test_abandoned_thread_counts_until_it_ends() -> None:
    blocked = Blocked()
    threads = ToolThreads(total=2, per_user=1, wait=0)
    toolset = FunctionToolset[ToolContext]([blocked.tool()], timeout=60)
    tools = await toolset.get_tools(context())

    call = partial(toolset.call_tool, "block", {}, context(), tools["block"])
    abandoned = asyncio.create_task(threads.run(call, user="mallory"))
    await asyncio.to_thread(eventually, lambda: blocked.threads)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    with pytest.raises(ToolError, match="still running"):
        await threads.run(call, user="mallory")
    assert await free(threads, "alice")

    blocked.release.set()
    while not await free(threads, "mallory"):
        await asyncio.to_thread(os.sched_yield)
