"""MCP servers over HTTP: their status, and the operator's approval of their tools."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
from pydantic_ai.messages import ToolCallPart
from tests.standins import hostile_mcp

from torana.app import App
from torana.testing import ScriptedModel

Start = Callable[..., Awaitable[tuple[App, httpx2.AsyncClient]]]


def tables(state: Path) -> str:
    command = {"command": sys.executable, "args": ["-P", hostile_mcp.__file__, "changing", str(state)]}
    return json.dumps({"shop": {**command, "allow": ["echo"]}})


async def listed(client: httpx2.AsyncClient) -> dict[str, Any]:
    (item,) = (await client.get("/v1/mcp")).json()["items"]
    return item


async def test_changed_mcp_tool_is_listed_approved_and_used(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    call = [ToolCallPart("shop_echo", {"text": "hello"})]
    app, client = await start(ScriptedModel(call, "once", call, "twice"), mcp=tables(state))
    await app.core.tooling.mcp.supervisors["shop"].tried.wait()
    (tool,) = (await listed(client))["offered"]
    assert (tool["name"], tool["permission"], tool["description"]) == ("shop_echo", "allow", "Say it again.")

    state.write_text("Say it louder.")
    assert (await client.post("/message", json={"content": "go"})).json()["reply"] == "once"
    while (found := await listed(client))["held"] is None:  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.01)

    assert found["offered"] == []
    assert [one["description"] for one in found["waiting"]] == ["Say it louder.", "Say it again."]
    path = "/v1/mcp/shop/approve"
    assert (await client.post(path, json={"held": "another"})).status_code == 409
    assert (await client.post(path, json={"held": 1})).status_code == 400
    assert (await client.post("/v1/mcp/none/approve", json={"held": "x"})).status_code == 404
    approved = await client.post(path, json={"held": found["held"]})
    assert (approved.status_code, approved.json()["tools"], approved.json()["held"]) == (200, 2, None)
    assert (await client.post("/message", json={"content": "go"})).json()["reply"] == "twice"
    (entry,) = (await client.get("/v1/audit")).json()["items"]
    assert (entry["action"], entry["target"]) == ("mcp.approve", "shop")


async def test_status_and_metrics_report_mcp_servers(start: Start, tmp_path: Path) -> None:
    app, client = await start(mcp=tables(tmp_path / "state"))
    await app.core.tooling.mcp.supervisors["shop"].tried.wait()

    (server,) = (await client.get("/v1/status")).json()["mcp"]
    assert (server["server"], server["state"], server["tools"]) == ("shop", "active", 1)
    metrics = (await client.get("/metrics")).text
    assert 'torana_mcp_up{server="shop"} 1.0' in metrics
    assert 'torana_mcp_calls_total{outcome="failed",server="shop"} 0.0' in metrics
