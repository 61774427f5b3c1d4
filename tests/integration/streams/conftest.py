"""A gateway on a real socket in the test's own loop, and a proxy that cuts its event streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from torana.app import App, build
from torana.cli.gateway import listen
from torana.config import load
from torana.testing import ScriptedModel


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event as a client reads it."""

    type: str
    id: str
    data: dict[str, Any]


Served = tuple[App, str]


class Browser:
    """A client that reads event streams by the specification."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def send(self, url: str, body: dict[str, Any], **headers: str) -> AsyncGenerator[Event]:
        """Send a message and read its events, to the end or until the connection is cut."""
        async for event in self._read("POST", f"{url}/message", headers, json=body):
            yield event

    async def resume(self, url: str, seen: list[Event], turn_id: str) -> AsyncGenerator[Event]:
        """Continue to read after the events seen."""
        headers = {"Last-Event-ID": seen[-1].id} if seen else {}
        async for event in self._read("GET", f"{url}/v1/turns/{turn_id}/events", headers):
            yield event

    @staticmethod
    def shown(events: list[Event]) -> str:
        """Return the text that the client displays: deltas are appended, and snapshots replace it."""
        text = ""
        for event in events:
            if event.type in ("turn.resumed", "message.snapshot"):
                text = event.data["text"]
            elif event.type == "message.delta":
                text += event.data["text"]
        return text

    async def _read(
        self, method: str, url: str, headers: dict[str, str], **request: Any
    ) -> AsyncGenerator[Event]:
        headers = {"Accept": "text/event-stream"} | headers
        with suppress(httpx2.RemoteProtocolError, httpx2.ReadError):  # cut in the middle of a chunked body
            async with self.http.stream(method, url, headers=headers, **request) as answer:
                assert answer.status_code == 200, await answer.aread()
                fields: dict[str, str] = {}
                async for line in answer.aiter_lines():
                    name, _, value = line.partition(": ")
                    if line:
                        fields[name] = value
                    elif "event" in fields:
                        yield Event(fields["event"], fields["id"], json.loads(fields["data"]))
                        fields = {}


class Proxy:
    """Passes bytes between clients and a server; a connection ends after its n-th event."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self._port = port
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The number of events that the next connections pass; without a number all.
        self.cuts: list[int] = []

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Proxy]:
        """Listen for connections."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield self
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut = self.cuts.pop(0) if self.cuts else None
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        upwards = asyncio.create_task(_pump(reader, up_writer))
        try:
            await (_pump(up_reader, writer) if cut is None else _pump_events(up_reader, writer, cut))
        finally:
            upwards.cancel()
            for side in (writer, up_writer):
                side.close()
            for side in (writer, up_writer):
                with suppress(ConnectionError):
                    await side.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


async def _pump_events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    """Pass on this number of events; nothing else in a response contains two line feeds."""
    for _ in range(count):
        try:
            writer.write(await reader.readuntil(b"\n\n"))
        except asyncio.IncompleteReadError as end:
            writer.write(end.partial)
            return
    await writer.drain()


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncGenerator[Callable[..., Awaitable[Served]]]:
    """``app, url = await serve(model)`` starts a gateway without limits that listens until the test ends."""
    async with AsyncExitStack() as stack:

        async def serve(model: ScriptedModel, **settings: Any) -> Served:
            settings = {"rate_per_user": 0, "rate_global": 0, "data_dir": tmp_path / "data"} | settings
            environ = {f"TORANA_{name.upper()}": str(value) for name, value in settings.items()}
            loaded = load(flags={}, environ=environ, cwd=tmp_path, user_dir=tmp_path)
            loaded.settings.data_dir.mkdir(exist_ok=True)
            app = build(loaded, started=time.monotonic(), model=model)
            await app.start()
            listener = listen("127.0.0.1", 0)
            server = uvicorn.Server(
                uvicorn.Config(app.asgi, lifespan="off", log_config=None, timeout_graceful_shutdown=0)
            )
            serving = asyncio.create_task(server.serve(sockets=[listener]))

            async def stop() -> None:
                await app.close()
                server.should_exit = True
                await serving

            stack.push_async_callback(stop)
            return app, f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield serve


@pytest.fixture
async def proxied() -> AsyncGenerator[Callable[[str], Awaitable[Proxy]]]:
    """``proxy = await proxied(url)`` starts a proxy in front of the gateway."""
    async with AsyncExitStack() as stack:

        async def proxied(url: str) -> Proxy:
            return await stack.enter_async_context(Proxy(httpx2.URL(url).port or 0).open())

        yield proxied


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    """A client without keep-alive connections."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(limits=limits, timeout=60, trust_env=False) as http:
        yield Browser(http)
