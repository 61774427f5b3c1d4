"""Results of MCP tools, as the model receives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
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
