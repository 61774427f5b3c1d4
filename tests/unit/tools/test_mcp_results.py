"""Results of MCP tools, as the model receives them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from mcp_types import CallToolResult, TextContent
from pydantic import SecretStr

from torana.tools.base import ToolError
from torana.tools.mcp.connection import Connection, ConnectionState
from torana.tools.mcp.entries import Server


class _Session:
    """A session in which every request has the same result."""

    def __init__(self, result: CallToolResult) -> None:
        self._result = result

    async def send_request(self, _request: object, _type: object) -> CallToolResult:
        return self._result


async def test_error_result_does_not_contain_the_server_secrets() -> None:
    text = "401: the key sk-0123456789 of Bearer sk-0123456789 is invalid"
    session = _Session(CallToolResult(content=[TextContent(type="text", text=text)], is_error=True))
    headers = {"Authorization": SecretStr("Bearer sk-0123456789")}
    server = Server(name="shop", url="http://127.0.0.1:1/mcp", headers=headers)
    connection = Connection(server=server, session=cast("Any", session), signs=ConnectionState())

    with pytest.raises(ToolError) as failure:
        await connection.call("pay", {})

    assert str(failure.value).endswith("401: the key *** of *** is invalid")
