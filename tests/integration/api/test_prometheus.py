"""The metrics, the alert rules and the dashboard with a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from pydantic_ai.messages import ToolCallPart
from tests.parts import require
from tests.standins.servers import free_port, serving
from tests.waiting import PATIENCE

from torana.app import App
from torana.cli.gateway import listen
from torana.testing import ScriptedModel

Start = Callable[..., Awaitable[tuple[App, httpx2.AsyncClient]]]

DEPLOY = Path(__file__).parents[3] / "deploy"
ASKS = '[{"tool": "calculate", "permission": "ask"}]'
TOKEN = "a-token-for-prometheus"


@asynccontextmanager
async def listening(app: App) -> AsyncGenerator[str]:
    """Serve a gateway on a real socket, and return its address."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app.asgi, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def prometheus(directory: Path, target: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """Run Prometheus with the alert rules, and return a client of its API."""
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")],
        "scrape_configs": [
            {
                "job_name": "torana",
                "authorization": {"credentials": TOKEN},
                "static_configs": [{"targets": [target]}],
            }
        ],
    }
    (directory / "prometheus.json").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    command = [
        require("prometheus", "prometheus"),
        f"--config.file={directory / 'prometheus.json'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    async with (
        serving(*command, port=port),
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=PATIENCE
        ) as client,
    ):
        yield client


async def query(client: httpx2.AsyncClient, expression: str) -> list[dict[str, Any]]:
    response = await client.get("/query", params={"query": expression})
    if response.status_code == 503:  # Prometheus is starting
        return []
    answer = response.json()
    assert answer["status"] == "success", (expression, answer)
    return answer["data"]["result"]


async def until_found(client: httpx2.AsyncClient, expression: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(30):
        while not (found := await query(client, expression)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


def dashboard_queries() -> list[str]:
    """Return the queries of the dashboard with values for its variables."""
    dashboard = json.loads((DEPLOY / "grafana" / "torana.json").read_text())
    return [
        target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def rules() -> str:
    return (DEPLOY / "prometheus" / "alerts.yml").read_text()


async def exposed(client: httpx2.AsyncClient) -> str:
    return (await client.get("/metrics")).text


async def test_real_prometheus_scrapes_a_turn_with_a_tool_call_and_an_approval(start: Start, tmp_path: Path):
    call = ToolCallPart("calculate", {"expression": "1+1"}, tool_call_id="c1")
    app, client = await start(
        ScriptedModel([call], "two"), gateway_token=TOKEN, permissions=ASKS, timezone="UTC"
    )
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    headers = {"Prefer": "wait=30"}
    message = asyncio.create_task(client.post("/api/message", json={"content": "1+1?"}, headers=headers))
    async with asyncio.timeout(30):
        while not (found := (await client.get("/v1/approvals")).json()["items"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        decision = {"decision": "approve", "digest": found[0]["digest"]}
        assert (await client.post(f"/v1/approvals/{found[0]['id']}", json=decision)).status_code == 200
        assert (await message).json()["reply"] == "two"
    await client.get("/no/such/path")

    async with listening(app) as target, prometheus(tmp_path, target) as server:
        (ended,) = await until_found(server, 'torana_turns_ended_total{state="completed"} == 1')
        assert ended["metric"]["instance"] == target
        counts = {
            "torana_turn_duration_seconds_count": {"state": "completed"},
            "torana_queue_wait_seconds_count": {},
            "torana_model_request_duration_seconds_count": {"model": "builtin", "outcome": "ok"},
            "torana_tool_call_duration_seconds_count": {"tool": "calculate", "outcome": "ok"},
            "torana_approval_wait_seconds_count": {"outcome": "ok"},
        }
        for name, labels in counts.items():
            (series,) = await query(server, name)
            assert series["metric"].items() >= labels.items()
            assert series["value"][1] == ("2" if "model" in name else "1")
        routes = await query(server, "torana_http_request_duration_seconds_count")
        assert {
            (one["metric"]["method"], one["metric"]["route"], one["metric"]["status"]) for one in routes
        } >= {
            ("POST", "/message", "2xx"),
            ("POST", "/v1/approvals/{approval_id}", "2xx"),
            ("GET", "other", "4xx"),
        }
        tokens = await query(server, "sum(torana_model_tokens_total)")
        assert float(tokens[0]["value"][1]) > 0
        for expression in dashboard_queries():
            await query(server, expression)
        loaded = (await server.get("/rules")).json()["data"]["groups"][0]["rules"]
        assert {rule["health"] for rule in loaded} <= {"ok", "unknown"}
        assert len(loaded) == rules().count("- alert:")


async def test_metrics_pass_the_linter_of_prometheus(start: Start):
    promtool = require("promtool", "prometheus")
    _, client = await start(ScriptedModel("one"))
    await client.post("/message", json={"content": "hello"})

    linter = await asyncio.create_subprocess_exec(
        promtool, "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await linter.communicate((await exposed(client)).encode())

    assert (linter.returncode, output.decode()) == (0, "")


def test_alert_rules_fire_as_documented():
    promtool = require("promtool", "prometheus")
    folder = DEPLOY / "prometheus"

    done = subprocess.run(
        [promtool, "test", "rules", str(folder / "alerts_test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    tests = (folder / "alerts_test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules())
    assert [one for one in alerts if not re.search(rf"alertname: {one}\n\s+exp_alerts", tests)] == []


async def test_guide_explains_every_metric_and_alert(start: Start):
    _, client = await start()
    guide = (DEPLOY.parent / "docs" / "howto" / "watch-it.md").read_text()
    families = re.findall(r"^# TYPE (torana_\w+)", await exposed(client), re.MULTILINE)
    assert len(families) > 15

    names = [*families, *re.findall(r"- alert: (\w+)", rules())]

    assert [name for name in names if f"| `{name}` |" not in guide] == []


async def test_dashboard_and_alerts_use_existing_metrics(start: Start):
    _, client = await start()
    exists = {"up"}
    for family in text_string_to_metric_families(await exposed(client)):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(family.type, [""])
        exists |= {family.name + suffix for suffix in suffixes}

    used = set(re.findall(r"\b(?:torana|process)_\w+|\bup\b", "\n".join([*dashboard_queries(), rules()])))

    assert used - exists == set()
    unused = {name.removesuffix("_count") for name in exists if name.endswith("_count")}
    assert [one for one in unused if not any(name.startswith(one) for name in used)] == []
