"""The interface of tracing, and a tracer that records nothing. ``otel`` has the tracer of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol


@dataclass(slots=True)
class SpanDetails:
    """The details of a span, which may change until its end. They contain no texts and ids of users."""

    name: str
    attributes: dict[str, str | int] = field(default_factory=dict[str, str | int])
    #: The type of the error that ended the span.
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlace:
    """The position of a span in a trace; by default it begins now, below the current span."""

    kind: Literal["internal", "server", "client"] = "internal"
    #: The start, in seconds of the monotonic clock.
    since: float | None = None
    #: The headers of the request, which can name the span above.
    headers: Mapping[str, str] | None = None
    #: The id of the turn whose span this is, or of the turn whose span is the parent.
    begins_turn: str | None = None
    of_turn: str | None = None


class Tracer(Protocol):
    """Records spans."""

    def span(
        self, name: str, place: SpanPlace | None = None, /, **attributes: str | int
    ) -> AbstractContextManager[SpanDetails]:
        """Record a span for the block. An exception ends the span as failed, and is not recorded."""
        ...


class NoTracer:
    """A tracer that records nothing."""

    @contextmanager
    def span(
        self, name: str, _place: SpanPlace | None = None, /, **_attributes: str | int
    ) -> Generator[SpanDetails]:
        """Run the block."""
        yield SpanDetails(name)
