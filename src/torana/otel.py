"""Traces by OpenTelemetry, exported over OTLP/HTTP. Imported only if the settings name an endpoint.

The gateway records requests, turns, waits and deliveries; pydantic-ai records agent runs, model requests and
tool calls by the semantic conventions for generative AI.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_EXPORTER_OTLP_TRACES_HEADERS,
)
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers
from opentelemetry.util.types import Attributes
from pydantic_ai import InstrumentationSettings
from pydantic_ai.capabilities import Instrumentation

from torana import __version__
from torana.telemetry import mask_text
from torana.tracing import SpanDetails, SpanPlace

#: Bounds on memory while the collector does not answer: the number of spans that wait, and the characters of
#: an attribute. The variables of OpenTelemetry override them.
_WAITING_SPANS = 512
_ATTRIBUTE_CHARACTERS = 16_384
_ATTRIBUTE_LIMITS = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")

#: Seconds for one export, and for the last exports when the gateway stops.
_EXPORT_TIMEOUT = 5.0
_CLOSING = 3.0

#: The number of recent turns whose later deliveries are added to their traces.
_REMEMBERED = 1_000

_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class OtelTracer:
    """Records spans and exports them in a thread. The gateway never waits for the collector."""

    def __init__(self, *, endpoint: str, content: bool, environ: Mapping[str, str]) -> None:
        """``content`` adds prompts, replies, arguments and results to the spans of the agent.

        ``environ`` has the headers of the export, which may be secret; other variables of OpenTelemetry are
        read from the process's environment.
        """
        headers = environ.get(OTEL_EXPORTER_OTLP_TRACES_HEADERS) or environ.get(OTEL_EXPORTER_OTLP_HEADERS, "")
        self._exporter = _MaskingExporter(
            OTLPSpanExporter(
                endpoint=f"{endpoint.rstrip('/')}/v1/traces",
                headers=parse_env_headers(headers, liberal=True),
                timeout=_EXPORT_TIMEOUT,
            )
        )
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False, span_limits=_limits())
        size = None if OTEL_BSP_MAX_QUEUE_SIZE in os.environ else _WAITING_SPANS
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=size))
        self._tracer = self._provider.get_tracer("torana", __version__)
        self._content = content
        self._propagator = TraceContextTextMapPropagator()
        #: The spans of recent turns, by turn id.
        self._turns: OrderedDict[str, SpanContext] = OrderedDict()

    def instrumentation(self) -> Instrumentation:
        """Return the capability that records the agent's runs, model requests and tool calls."""
        return Instrumentation(
            settings=InstrumentationSettings(
                tracer_provider=self._provider,
                meter_provider=NoOpMeterProvider(),
                include_content=self._content,
                include_binary_content=False,
                include_model_request_parameters=False,
            )
        )

    @contextmanager
    def span(
        self, name: str, place: SpanPlace | None = None, /, **attributes: str | int
    ) -> Generator[SpanDetails]:
        """Record a span for the block, as ``Tracer`` promises."""
        place = place or SpanPlace()
        details = SpanDetails(name, dict(attributes))
        with self._tracer.start_as_current_span(
            name,
            context=self._above(place),
            kind=_KINDS[place.kind],
            start_time=_wall_time(place.since),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if place.begins_turn is not None:
                self._remember(place.begins_turn, span)
            try:
                yield details
            except BaseException as error:
                details.error = details.error or type(error).__name__
                raise
            finally:
                _complete(span, details)

    async def close(self) -> None:
        """Export the spans that wait, for at most a few seconds, and end."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(closed.set)

        # A daemon, so that the process can end while an export hangs.
        threading.Thread(target=shut_down, name="traces", daemon=True).start()
        try:
            async with asyncio.timeout(_CLOSING):
                await closed.wait()
        except TimeoutError:
            self._exporter.shutdown()

    def _above(self, place: SpanPlace) -> contexts.Context | None:
        """Return the context with the span above; None for the current context."""
        if place.headers is not None:
            return self._propagator.extract(place.headers, context=contexts.Context())
        known = self._turns.get(place.of_turn) if place.of_turn is not None else None
        return set_span_in_context(NonRecordingSpan(known)) if known is not None else None

    def _remember(self, turn_id: str, span: Span) -> None:
        self._turns[turn_id] = span.get_span_context()
        self._turns.move_to_end(turn_id)
        if len(self._turns) > _REMEMBERED:
            self._turns.popitem(last=False)


class _MaskingExporter(SpanExporter):
    """Masks credentials in texts; this runs in the thread of the export."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_masked_span(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _masked_span(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=mask_text(span.name),
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_masked(span.attributes),
        events=[Event(event.name, _masked(event.attributes), event.timestamp) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code, mask_text(span.status.description or "") or None),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _masked(attributes: Attributes) -> Attributes:
    return {
        name: mask_text(value) if isinstance(value, str) else value
        for name, value in (attributes or {}).items()
    }


def _complete(span: Span, details: SpanDetails) -> None:
    span.update_name(details.name)
    span.set_attributes(details.attributes)
    if details.error is not None:
        span.set_attribute("error.type", details.error)
        span.set_status(StatusCode.ERROR)


def _wall_time(since: float | None) -> int | None:
    """Return a time of the monotonic clock in nanoseconds since 1970."""
    return None if since is None else time.time_ns() - int((time.monotonic() - since) * 1e9)


def _limits() -> SpanLimits:
    if any(name in os.environ for name in _ATTRIBUTE_LIMITS):
        return SpanLimits()
    return SpanLimits(max_attribute_length=_ATTRIBUTE_CHARACTERS)


def _resource() -> Resource:
    """Return the resource of the environment's variables, by default the service ``torana``."""
    found = Resource.create({SERVICE_VERSION: __version__})
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return found.merge(Resource({SERVICE_NAME: "torana"}))
    return found
