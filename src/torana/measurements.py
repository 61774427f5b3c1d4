"""Measurements of the running gateway for its metrics: durations of stages, tokens and costs."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Literal

from torana.tracing import NoTracer, Tracer

Stage = Literal["request", "queue", "turn", "model", "tool", "approval", "delivery"]

#: The names of the labels of each stage. ``outcome`` is ``ok`` or ``failed``.
LABELS: Mapping[Stage, tuple[str, ...]] = MappingProxyType(
    {
        "request": ("method", "route", "status"),
        "queue": (),
        "turn": ("state",),
        "model": ("model", "outcome"),
        "tool": ("tool", "outcome"),
        "approval": ("outcome",),
        "delivery": ("account", "outcome"),
    }
)

#: The upper bounds of the buckets in seconds; the last bucket has none.
BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

#: The label for every value that is not among the known values.
OTHER = "other"

#: The maximum number of histograms of a stage: an MCP server can rename its tools again and again.
_SERIES = 200


class Histogram:
    """Durations in seconds, counted in buckets."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Return the upper bound of each bucket, and the number of durations up to it."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


@dataclass(slots=True)
class ModelUsage:
    """The tokens and dollars that a model used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, *, input_tokens: int, output_tokens: int, cost_usd: float) -> None:
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost_usd += cost_usd


@dataclass(frozen=True, slots=True)
class Measurements:
    """The durations and the usage since the start, and the tracer. Use it in the event loop only."""

    tracer: Tracer = field(default_factory=NoTracer)
    #: The histograms of each stage, by the values of the labels.
    durations: Mapping[Stage, dict[tuple[str, ...], Histogram]] = field(
        default_factory=lambda: {stage: {} for stage in LABELS}
    )
    #: The usage of each model, by its configured name.
    spent: dict[str, ModelUsage] = field(default_factory=dict[str, ModelUsage])

    def add(self, stage: Stage, seconds: float, *labels: str) -> None:
        """Count a duration. ``labels`` are the values for ``LABELS``, from a bounded set."""
        series = self.durations[stage]
        found = series.get(labels)
        if found is None:
            if len(series) >= _SERIES:
                labels = (OTHER,) * len(labels)
            found = series.setdefault(labels, Histogram())
        found.add(seconds)

    @contextmanager
    def time(self, stage: Stage, *labels: str) -> Generator[None]:
        """Count the duration of the block, with its outcome as the last label."""
        started = time.monotonic()
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        finally:
            self.add(stage, time.monotonic() - started, *labels, outcome)

    def spent_by(self, model: str) -> ModelUsage:
        """Return the usage of a model, to which the caller adds."""
        return self.spent.setdefault(model, ModelUsage())
