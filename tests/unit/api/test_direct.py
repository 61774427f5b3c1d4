"""Frequent endpoints are answered without the web framework, with the rights of their paths."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from torana.api.serving.direct import DIRECT, DeferredApplication
from torana.api.serving.framework import ROUTES

#: Modules that a gateway does not need to answer messages. Together they take 15 MB.
UNNEEDED = (
    "fastapi",
    "jinja2",
    "openai",
    "prometheus_client",
    "psutil",
    "pydantic.v1",
    "torana.api.routes.turns",
)

#: Sends requests to a gateway in this process, and prints which of the modules each has imported.
SEND = f"""
import asyncio, sys, time
from pathlib import Path
import httpx2
from torana.app import build
from torana.config import load

async def main():
    place = Path(sys.argv[1])
    loaded = load(flags={{}}, environ={{"TORANA_DATA_DIR": str(place)}}, cwd=place, user_dir=place)
    app = build(loaded, started=time.monotonic())
    await app.start()
    transport = httpx2.ASGITransport(app=app.asgi)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for method, path, body in (
            ("GET", "/health", None), ("HEAD", "/health", None), ("GET", "/skills", None),
            ("POST", "/message", {{"content": "2 + 2"}}), ("POST", "/v1/messages", {{"content": "hello"}}),
            ("GET", "/api/health", None), ("GET", "/v1/status", None),
        ):
            answer = await client.request(method, path, json=body)
            print(method, path, answer.status_code, *(name for name in {UNNEEDED} if name in sys.modules))
    await app.close()

asyncio.run(main())
"""


def test_messages_and_health_checks_load_no_unneeded_module(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SEND, str(tmp_path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    *direct, status = ended.stdout.splitlines()
    assert direct == [
        "GET /health 200",
        "HEAD /health 200",
        "GET /skills 200",
        "POST /message 200",
        "POST /v1/messages 200",
        "GET /api/health 200",
    ]
    assert status.startswith("GET /v1/status 200 fastapi")


def test_direct_endpoints_require_the_scopes_of_the_document() -> None:
    described = {
        (method, route.path): [one.dependency for one in route.dependencies]
        for route in ROUTES
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    for place, (_, scopes) in DIRECT.items():
        assert described[place] == ([] if scopes is None else [scopes]), place


async def nothing(*_: Any) -> Any:
    """Receive or send nothing."""


def test_framework_loads_without_parsing_source() -> None:
    """Early versions of Python 3.11 and 3.12 fail if two threads parse: a calculation, and the load."""
    program = (
        "import ast; del ast.parse\n"
        "from torana.api.serving.framework import load_application\n"
        "load_application(guarded=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_concurrent_requests_load_the_application_once() -> None:
    may_end, loads, answered = threading.Event(), list[str](), list[str]()
    loop, loading = asyncio.get_running_loop(), asyncio.Event()

    async def answer(scope: Any, *_: Any) -> None:
        answered.append(scope["path"])

    def load() -> Any:
        loads.append("load")
        loop.call_soon_threadsafe(loading.set)
        may_end.wait()
        return answer

    app = DeferredApplication(load)
    requests = [asyncio.create_task(app({"path": path}, nothing, nothing)) for path in ("a", "b", "c")]
    await loading.wait()
    requests[0].cancel()
    may_end.set()
    await asyncio.gather(*requests, return_exceptions=True)
    await app({"path": "d"}, nothing, nothing)
    assert (loads, sorted(answered)) == (["load"], ["b", "c", "d"])


async def test_request_after_a_failed_load_loads_again() -> None:
    results: list[Any] = [nothing, OSError("too many open files")]

    def load() -> Any:
        result = results.pop()
        if isinstance(result, OSError):
            raise result
        return result

    app = DeferredApplication(load)
    with pytest.raises(OSError, match="too many open files"):
        await app({}, nothing, nothing)
    await app({}, nothing, nothing)
    assert results == []
