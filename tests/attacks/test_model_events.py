"""Attacks by a model's server on the SDKs of the providers: short events that take them long."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest
from tests.attacks.conftest import GatewayProcess

_ITEMS: list[dict[str, Any]] = [{}] * 4_800
_MIB = 1_048_576


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


_RESPONSE = {"type": "response.created", "sequence_number": 0}
_ATTACKS: dict[str, tuple[str, list[bytes]]] = {
    "items of a response": (
        "openai-responses:m",
        [_event({**_RESPONSE, "response": {"id": "r", "output": _ITEMS}})] * 40,
    ),
    "items of instructions": (
        "openai-responses:m",
        [_event({**_RESPONSE, "response": {"id": "r", "instructions": _ITEMS[:500]}})] * 40,
    ),
    "items of a message": (
        "anthropic:m",
        [_event({"type": "message_start", "message": {"id": "m", "content": _ITEMS}})] * 40,
    ),
    "lines of texts": ("google:m", [b"data: {}\n\n", b"\x0b" + _event({"candidates": _ITEMS * 200})]),
    "lines of an event": ("anthropic:m", [b"data:\n" * 690_000, b"\n"]),
    "lines that are no events": (
        "google:m",
        [b"data: {}\n\n", b'{"candidates":[\n\n', *[b"{}," * 160 + b"\n\n"] * (4 * _MIB // 482), b"{}]}\n\n"],
    ),
}


@pytest.mark.parametrize("attack", _ATTACKS)
def test_events_that_an_sdk_reads_slowly_fail_the_turn_soon(
    new_gateway: Callable[..., GatewayProcess], attack: str
) -> None:
    model, events = _ATTACKS[attack]
    with _serving(events) as url:
        gateway = new_gateway(model=model, model_api_key="0123456789", model_base_url=url)
        gateway.start()
        before, memory = gateway.cpu_seconds(), gateway.process.memory_info().rss
        with gateway.client(timeout=120) as client:
            failed = client.post("/message", json={"content": "attack"})

    assert (failed.status_code, failed.json()["code"]) == (502, "model_response_too_large")
    assert gateway.cpu_seconds() - before < 8  # with the import of the SDK
    assert gateway.process.memory_info().rss - memory < 150 * _MIB


@contextmanager
def _serving(events: list[bytes]) -> Generator[str]:
    """Answer each POST request with the events."""

    class Handler(BaseHTTPRequestHandler):
        sent: ClassVar[list[bytes]] = events

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                for event in self.sent:
                    self.wfile.write(event)
            except ConnectionError:
                pass

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
