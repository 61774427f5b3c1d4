"""Histograms, and bounds on their number."""

from __future__ import annotations

import pytest

from torana.measurements import BOUNDS, OTHER, Measurements


def test_duration_counts_in_every_bucket_that_it_fits() -> None:
    measurements = Measurements()
    for seconds in (0.0, BOUNDS[0], 3.0, 10_000.0):
        measurements.add("queue", seconds)

    histogram = measurements.durations["queue"][()]
    assert histogram.total == sum([BOUNDS[0], 3.0, 10_000.0])
    buckets = dict(histogram.buckets())
    assert [buckets[bound] for bound in ("0.01", "2.5", "5.0", "600.0", "+Inf")] == [2, 2, 3, 3, 4]


def test_failed_block_is_measured_and_raises() -> None:
    measurements = Measurements()
    with pytest.raises(ValueError, match="no"), measurements.time("tool", "fetch"):
        raise ValueError("no")
    assert list(measurements.durations["tool"]) == [("fetch", "failed")]


def test_number_of_label_values_is_bounded() -> None:
    measurements = Measurements()
    for number in range(1_000):
        measurements.add("tool", 1.0, f"renamed_{number}", "ok")

    series = measurements.durations["tool"]
    assert len(series) == 201
    assert series[OTHER, OTHER].total == 800
