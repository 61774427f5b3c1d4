"""The number of answers that wait until an MCP server reads them is bounded."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

from torana.tools.mcp.answers import BoundedAnswers

ANSWER = JSONRPCResponse(jsonrpc="2.0", id=1, result={})
REFUSAL = JSONRPCError(jsonrpc="2.0", id=1, error=ErrorData(code=1, message="no"))
CALL = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call")


async def send_all(stream: BoundedAnswers, message: JSONRPCMessage, number: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(stream.send(SessionMessage(message))) for _ in range(number)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("message", [ANSWER, REFUSAL])
async def test_answers_above_the_maximum_are_refused(message: JSONRPCMessage) -> None:
    full: list[str] = []
    to_server, server = anyio.create_memory_object_stream[SessionMessage](0)
    async with server, BoundedAnswers(to_server, full=lambda: full.append("full")) as stream:
        tasks = await send_all(stream, message, 1_000)

        refused = [task for task in tasks if task.done()]
        assert all(isinstance(task.exception(), anyio.BrokenResourceError) for task in refused)
        assert (len(refused), len(full)) == (744, 744)

        for _ in range(256):
            await server.receive()
        await asyncio.gather(*tasks, return_exceptions=True)
        (again,) = await send_all(stream, message, 1)
        await server.receive()
        await again


async def test_requests_are_not_counted() -> None:
    full: list[str] = []
    to_server, server = anyio.create_memory_object_stream[SessionMessage](0)
    async with server, BoundedAnswers(to_server, full=lambda: full.append("full")) as stream:
        tasks = await send_all(stream, CALL, 1_000)
        for _ in tasks:
            await server.receive()
        await asyncio.gather(*tasks)

    assert full == []
