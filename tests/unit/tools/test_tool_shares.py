"""Shares of tools that take long."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from torana.tools import ToolError
from torana.tools.shares import ToolShares


async def test_user_with_a_full_share_is_refused_and_others_are_not() -> None:
    shares = ToolShares(calls={"slow": (2, 1)}, wait=0)

    async with shares.slot("slow", "mallory"):
        with pytest.raises(ToolError, match="earlier calls of slow"):
            async with shares.slot("slow", "mallory"):
                pass
        async with shares.slot("slow", "alice"):
            pass
    async with shares.slot("slow", "mallory"):
        pass


async def test_waiting_users_take_turns() -> None:
    shares = ToolShares(calls={"slow": (1, 1)}, wait=60)
    order: list[str] = []

    async def call(user: str) -> None:
        async with shares.slot("slow", user):
            order.append(user)
            await asyncio.sleep(0)

    await asyncio.gather(*(call(user) for user in ["mallory"] * 4 + ["alice"]))

    assert order == ["mallory", "alice", "mallory", "mallory", "mallory"]


async def test_other_tools_are_not_limited() -> None:
    shares = ToolShares(calls={"slow": (1, 1)}, wait=0)

    async with AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(shares.slot("fast", "mallory"))


@pytest.mark.parametrize("tool", ["run_skill_script", "web_fetch", "web_search", "earlier_messages"])
async def test_one_user_cannot_take_all_slots_of_a_slow_tool(tool: str) -> None:
    shares = ToolShares(wait=0)

    async with AsyncExitStack() as stack:
        with suppress(ToolError):
            for _ in range(100):
                await stack.enter_async_context(shares.slot(tool, "mallory"))
            pytest.fail("mallory has all slots")
        await stack.enter_async_context(shares.slot(tool, "alice"))
