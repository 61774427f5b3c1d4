"""Results of MCP tools, as the model receives them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from pydantic import SecretStr

from torana.tools.base import ToolError
from torana.tools.mcp.connection import Connection, ConnectionState
from torana.tools.mcp.entries import Server


class _Session:
    """A session in which every request has the same result."""

    def __init__(self, result: Mapping[str, object]) -> None:
        self._result = result

    async def send_request(self, _request: object, result_type: type[CallToolResult]) -> CallToolResult:
        return result_type.model_validate(self._result)


def connect(server: Server, content: Sequence[object], **result: object) -> Connection:
    session = _Session({"content": content, **result})
    return Connection(server=server, session=cast("Any", session), state=ConnectionState())


async def test_error_result_does_not_contain_the_server_secrets() -> None:
    text = "401: the key sk-0123456789 of Bearer sk-0123456789 is invalid"
    headers = {"Authorization": SecretStr("Bearer sk-0123456789")}
    server = Server(name="shop", url="http://127.0.0.1:1/mcp", headers=headers)
    connection = connect(server, [{"type": "text", "text": text}], isError=True)

    with pytest.raises(ToolError) as failure:
        await connection.call("pay", {})

    assert str(failure.value).endswith("401: the key *** of *** is invalid")


async def test_only_the_first_blocks_of_a_result_are_validated() -> None:
    blocks = [*([{"type": "text", "text": "x"}] * 1_000), *([{"type": "invalid"}] * 9_000)]
    connection = connect(Server(name="shop", url="http://127.0.0.1:1/mcp"), blocks)

    assert (await connection.call("pay", {})).count("\nx") == 1_000


async def test_annotations_of_a_block_are_not_validated() -> None:
    """Each entry of the audience would add several errors, of all kinds of blocks."""
    block = {"type": "text", "text": "x", "annotations": {"audience": [1] * 19_000}}
    connection = connect(Server(name="shop", url="http://127.0.0.1:1/mcp"), [block])

    assert (await connection.call("pay", {})).endswith("\nx")


class _RefusingSession:
    """A session in which every request fails, with weak references to its errors."""

    def __init__(self) -> None:
        self.errors: list[weakref.ref[MCPError]] = []

    async def send_request(self, *_: object) -> CallToolResult:
        error = MCPError(-32_000, "no")
        self.errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error


async def test_error_of_a_call_is_freed_with_the_call() -> None:
    """A long one would otherwise stay in memory until the next collection of garbage."""
    session = _RefusingSession()
    server = Server(name="shop", url="http://127.0.0.1:1/mcp")
    connection = Connection(server=server, session=cast("Any", session), state=ConnectionState())
    gc.disable()
    try:
        with pytest.raises(ToolError, match="refused the call: no"):
            await connection.call("pay", {})
        await asyncio.sleep(0)
        assert [error() for error in session.errors] == [None]
    finally:
        gc.enable()
