"""Event streams of a gateway that is killed and restarted."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.standins.gate import Gate

from torana.testing import Answer, Call, ChatRequest, OpenAIStandIn

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.streams.conftest import Browser, Event

HI = {"content": "hi", "channelId": "c"}
KEY = "idempotency-key"

#: The number of events up to the one in which the tool waits; three words and the end follow.
WAITING = 2


def rule(request: ChatRequest) -> Answer:
    """Call the tool, and then reply with three words."""
    return "That is all." if request.results else [Call("dawdle", {})]


@pytest.fixture
def provider() -> Iterator[OpenAIStandIn]:
    with OpenAIStandIn(reply=rule) as provider:
        yield provider


@asynccontextmanager
async def gateway(path: Path, provider: OpenAIStandIn) -> AsyncGenerator[str]:
    """Run a gateway in a separate process, yield its URL, and kill it at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environ = {
        name: value for name, value in os.environ.items() if name.startswith(("PATH", "PYTHONPATH", "COVERAGE"))
    }
    environ |= {
        "HOME": str(path),
        "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")]),
        "TORANA_DATA_DIR": str(path / "data"),
        "TORANA_PORT": str(port),
        "TORANA_TOOLS": "dawdling:dawdle",
        "TORANA_MODEL": "openai-chat:x",
        "TORANA_MODEL_BASE_URL": provider.url,
        "TORANA_RATE_GLOBAL": "0",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "torana", "serve"),
        cwd=path,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        while not (line := await process.stdout.readline()).startswith(b"Torana "):
            assert line, "the gateway ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("seen_events", [1, WAITING, WAITING + 1, WAITING + 3])
async def test_text_after_the_resumption_is_the_reply(
    tmp_path: Path, provider: OpenAIStandIn, browser: Browser, seen_events: int
):
    gate = Gate()
    (tmp_path / "dawdling.py").write_text(gate.tool)
    seen: list[Event] = []
    if seen_events > WAITING:
        gate.open()
    async with gateway(tmp_path, provider) as url:
        async for event in browser.send(url, HI, **{KEY: "k"}):
            seen.append(event)
            if len(seen) == seen_events:
                break
    assert len(seen) == seen_events
    gate.open()
    async with gateway(tmp_path, provider) as url:
        seen += [event async for event in browser.resume(url, seen, seen[0].data["id"])]
        plain = (await browser.http.post(f"{url}/message", json=HI, headers={KEY: "k"})).json()
    if seen_events <= WAITING:
        assert seen[seen_events].type == "turn.resumed"
    assert seen[-1].type == "turn.completed"
    assert seen[-1].data == plain
    assert browser.shown(seen) == plain["reply"] == "That is all."
