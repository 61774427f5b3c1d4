"""Rows of the table of results, and the choices of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from tests.postgres import PostgresServer

#: The measure, the measured value with its unit, the required value and the aim.
Row = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The choices of a run of the benchmark."""

    #: A directory for the data of the gateways.
    home: Path
    #: The number of kills and stops.
    repeat: int
    #: The number of messages of each measurement.
    messages: int
    #: The version of PostgreSQL, or None for the newest one of the system.
    postgres: int | None

    def directory(self, name: str) -> Path:
        """Create a directory of the run, and return it."""
        path = self.home / name
        path.mkdir()
        return path

    def server(self) -> PostgresServer:
        """Start a PostgreSQL server, which its context stops."""
        return PostgresServer(self.postgres)


def p95_row(measure: str, seconds: Iterable[float], must: str, aim: str) -> Row:
    """Return the row of a number of times."""
    values = list(seconds)
    p95 = quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
    return f"{measure} ({len(values)})", f"{p95:.2f} s (median {median(values):.2f} s)", must, aim
