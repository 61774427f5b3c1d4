"""A collector of OpenTelemetry, which receives traces over OTLP/HTTP and decodes them by the published
protobufs.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """The spans received so far, and the headers and bodies of the exports."""

    url: str = ""
    spans: list[Span] = field(default_factory=list[Span])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    bodies: list[bytes] = field(default_factory=list[bytes])
    resource: dict[str, str] = field(default_factory=dict[str, str])

    def named(self, name: str) -> Span:
        """Return the only span of that name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def above(self, span: Span) -> str:
        """Return the name of the span above; an empty text for the first span of a trace."""
        return next((one.name for one in self.spans if one.span_id == span.parent_span_id), "")


def attributes_of(span: Span) -> dict[str, Any]:
    """Return the attributes of a span."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in span.attributes
    }


@contextmanager
def collecting() -> Generator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                collector.resource = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    collector.spans.extend(scope.spans)
            collector.headers.append(dict(self.headers))
            collector.bodies.append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
