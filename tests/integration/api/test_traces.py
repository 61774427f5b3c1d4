"""Traces, received by a collector that decodes OTLP."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest, ToolCallPart
from tests.standins.otlp import Collector, attributes_of, collecting

from torana.app import App
from torana.app.checks import settings_faults
from torana.config import load
from torana.errors import ConfigInvalid
from torana.models.providers import open_model
from torana.otel import OtelTracer
from torana.testing import ScriptedModel
from torana.tracing import SpanPlace

Start = Callable[..., Awaitable[tuple[App, httpx2.AsyncClient]]]

ASKS = '[{"tool": "calculate", "permission": "ask"}]'
CALL = ToolCallPart("calculate", {"expression": "17+4321000000"}, tool_call_id="call-1")
#: The example of the specification of W3C Trace Context.
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


async def approve(client: httpx2.AsyncClient) -> None:
    """Approve the call that waits."""
    async with asyncio.timeout(30):
        while not (found := (await client.get("/v1/approvals")).json()["items"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    decision = {"decision": "approve", "digest": found[0]["digest"]}
    assert (await client.post(f"/v1/approvals/{found[0]['id']}", json=decision)).status_code == 200


async def send_and_approve(client: httpx2.AsyncClient, content: str) -> str:
    """Send a message whose turn asks for one approval, and return the reply."""
    headers = {"traceparent": TRACEPARENT, "Prefer": "wait=30"}
    body = {"content": content, "userId": "ana-of-lisbon", "channelId": "kitchen-table"}
    message = asyncio.create_task(client.post("/message", json=body, headers=headers))
    await approve(client)
    return (await message).json()["reply"]


async def test_collector_sees_the_whole_trace_of_a_message(start: Start, collector: Collector):
    app, client = await start(ScriptedModel([CALL], "done"), permissions=ASKS, trace_endpoint=collector.url)

    assert await send_and_approve(client, "add them") == "done"
    await client.get("/health")
    await app.close()

    trace = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    below = {(span.name, collector.above(span)) for span in trace}
    assert below == {
        ("POST /message", ""),
        ("turn", "POST /message"),
        ("queue", "turn"),
        ("invoke_agent torana", "turn"),
        ("chat scripted", "invoke_agent torana"),
        ("execute_tool calculate", "invoke_agent torana"),
        ("approval", "execute_tool calculate"),
    }
    assert len(trace) == 8  # two model requests
    request = collector.named("POST /message")
    assert request.parent_span_id.hex() == CALLER
    assert request.kind == request.SPAN_KIND_SERVER
    assert attributes_of(request)["http.response.status_code"] == 200
    turn = attributes_of(collector.named("turn"))
    assert turn["torana.turn.state"] == "completed"
    agent = attributes_of(collector.named("invoke_agent torana"))
    assert agent["gen_ai.conversation.id"] == turn["gen_ai.conversation.id"]
    chats = [attributes_of(span) for span in trace if span.name == "chat scripted"]
    assert all(chat["gen_ai.operation.name"] == "chat" for chat in chats)
    assert all(chat["gen_ai.usage.output_tokens"] > 0 for chat in chats)
    assert collector.resource["service.name"] == "torana"
    assert not [span.name for span in collector.spans if "health" in span.name]


@pytest.mark.parametrize("content", [False, True])
async def test_texts_are_in_the_trace_only_on_request(start: Start, collector: Collector, content: bool):
    model = ScriptedModel([CALL], "the sum is ready")
    app, client = await start(
        model, permissions=ASKS, trace_endpoint=collector.url, trace_content=content, persona="Be a sphinx."
    )

    await send_and_approve(client, "how much altogether")
    await app.close()

    exported = b"".join(collector.bodies)
    texts = (b"how much altogether", b"17+4321000000", b"4321000017", b"the sum is ready", b"Be a sphinx")
    assert [text in exported for text in texts] == [content] * len(texts)
    assert [name for name in (b"ana-of-lisbon", b"kitchen-table") if name in exported] == []


async def test_credentials_in_texts_are_masked(start: Start, collector: Collector):
    secret = "sk-proj-a1b2c3d4e5f6g7h8"
    app, client = await start(
        ScriptedModel(f"you wrote {secret}"), trace_endpoint=collector.url, trace_content=True
    )

    await client.post("/message", json={"content": f"my key is {secret}"})
    await app.close()

    exported = b"".join(collector.bodies)
    assert b"my key is ****" in exported
    assert secret.encode() not in exported


@asynccontextmanager
async def refusing_server(heads: list[bytes]) -> AsyncGenerator[str]:
    """Run a model server that refuses every request; ``heads`` receives the heads of the requests."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).lower())
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    server.close()


async def test_model_server_receives_the_span_only_if_it_is_recorded(collector: Collector):
    tracer = OtelTracer(endpoint=collector.url, content=False, environ={})
    heads: list[bytes] = []
    async with refusing_server(heads) as url:
        names = ["openai-chat:m"]
        model = open_model(names, environ={}, base_url=url, api_key=None, builtin=ScriptedModel)
        async with model:
            with pytest.raises(ModelHTTPError), tracer.span("turn"):
                await model_request(model, [ModelRequest.user_text_prompt("hello")])
            with pytest.raises(ModelHTTPError):
                await model_request(model, [ModelRequest.user_text_prompt("hello")])
    await tracer.close()

    span = collector.named("turn")
    traceparent = f"traceparent: 00-{span.trace_id.hex()}-{span.span_id.hex()}-".encode()
    assert [traceparent in head for head in heads] == [True, False]
    assert [name for name in (b"traceparent", b"baggage") if name in heads[-1]] == []
    assert b"baggage" not in heads[0]


async def test_delivery_joins_the_trace_of_its_turn(collector: Collector):
    tracer = OtelTracer(endpoint=collector.url, content=False, environ={})
    with tracer.span("turn", SpanPlace(begins_turn="turn_1")):
        pass
    with tracer.span("delivery", SpanPlace(of_turn="turn_1")):
        pass
    with tracer.span("later", SpanPlace(of_turn="turn_of_an_earlier_process")):
        pass
    await tracer.close()

    assert collector.above(collector.named("delivery")) == "turn"
    assert collector.named("later").trace_id != collector.named("turn").trace_id


async def test_memory_is_bounded_while_the_collector_is_down(caplog: pytest.LogCaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracer = OtelTracer(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", content=True, environ={})
        tracemalloc.start()
        try:
            for number in range(2_500):
                text = str(number) * 10_000
                with tracer.span("turn", SpanPlace(begins_turn=f"turn_{number}"), text=text):
                    pass
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await tracer.close()

    assert used < 34_000_000  # 512 texts in the queue, as many in the export, and these encoded


async def test_queued_turn_belongs_to_the_trace_of_its_own_request(start: Start, collector: Collector):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "one"], "two"), trace_endpoint=collector.url)
    later = {"Prefer": "respond-async"}
    await client.post("/message", json={"content": "first", "channelId": "a"}, headers=later)
    headers = later | {"traceparent": TRACEPARENT}
    second = await client.post("/message", json={"content": "second", "channelId": "a"}, headers=headers)
    gate.set()
    await client.get(f"/v1/turns/{second.json()['id']}/events", headers={"Accept": "text/event-stream"})
    await app.close()

    turns = {attributes_of(span)["torana.turn.id"]: span for span in collector.spans if span.name == "turn"}
    assert len(turns) == 2
    traces = [turn_id for turn_id, span in turns.items() if span.trace_id.hex() == TRACE]
    assert traces == [second.json()["id"]]


async def test_failed_turn_has_the_type_of_its_error_without_the_message(start: Start, collector: Collector):
    app, client = await start(ScriptedModel([ValueError("private words")]), trace_endpoint=collector.url)

    answer = await client.post("/message", json={"content": "hello"})
    await app.close()

    turn = collector.named("turn")
    assert turn.status.code == turn.status.STATUS_CODE_ERROR
    assert attributes_of(turn)["error.type"] == answer.json()["code"]
    assert attributes_of(collector.named("POST /message"))["error.type"] == str(answer.status_code)
    assert b"private words" not in b"".join(collector.bodies)


async def test_export_carries_the_headers_of_the_usual_variable(
    start: Start, collector: Collector, tmp_path: Path
):
    (tmp_path / ".env").write_text("OTEL_EXPORTER_OTLP_HEADERS=api-key=key-of-a-collector\n")
    app, client = await start(trace_endpoint=collector.url)
    await client.post("/message", json={"content": "hello"})
    await app.close()

    assert "OTEL_EXPORTER_OTLP_HEADERS" in app.secret_variables
    assert {headers["api-key"] for headers in collector.headers} == {"key-of-a-collector"}
    assert b"key-of-a-collector" not in b"".join(collector.bodies)


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "hangs"])
async def test_no_turn_waits_for_a_collector_that_is_down(start: Start, hangs: bool):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if not hangs:
            listener.close()
        app, client = await start(trace_endpoint=url)
        async with asyncio.timeout(30):
            for number in range(20):
                answer = await client.post("/message", json={"content": "hello", "channelId": f"c{number}"})
                assert answer.status_code == 200
            await app.close()
        # The end of the gateway does not wait for an export that hangs.
        assert not hangs or "traces" in {thread.name for thread in threading.enumerate()}


async def test_missing_library_is_explained(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torana.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(ConfigInvalid, match=r"TORANA_TRACE_ENDPOINT.*pip install .*\[otel\]"):
        await start(trace_endpoint="http://127.0.0.1:4318")
    environ = {"TORANA_TRACE_ENDPOINT": "http://127.0.0.1:4318", "TORANA_DATA_DIR": str(tmp_path / "data")}
    (fault,) = settings_faults(load(flags={}, environ=environ, cwd=tmp_path, user_dir=tmp_path))
    assert "[otel]" in fault


def test_library_is_not_imported_without_an_endpoint(imported_at_start: frozenset[str]):
    library = ("opentelemetry.sdk", "opentelemetry.exporter", "google.protobuf", "requests")
    assert [name for name in imported_at_start if name.startswith(library)] == []
