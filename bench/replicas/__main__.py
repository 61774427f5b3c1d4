"""``python -m bench.replicas``: measure, print a table, and write ``bench/results/replicas.md``.

The gateways run the checkout. The server is a real PostgreSQL on the same machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.replicas.connectors import measure_connectors
from bench.replicas.decisions import measure_decisions
from bench.replicas.failures import measure_failures
from bench.replicas.rows import Row, Run
from bench.replicas.single import measure_single_gateways
from bench.replicas.throughput import measure_processor_time, measure_throughput

RESULTS = Path(__file__).parents[1] / "results"

_MEASURES: dict[str, Callable[[Run], Iterable[Row]]] = {
    "single": measure_single_gateways,
    "throughput": measure_throughput,
    "processor": measure_processor_time,
    "failures": measure_failures,
    "connectors": measure_connectors,
    "decisions": measure_decisions,
}


def main() -> None:
    """Measure as the arguments say, print a table, and write it."""
    arguments = _parse()
    rows: list[Row] = []
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="torana-bench-") as home:
        run = Run(
            home=Path(home),
            repeat=arguments.repeat,
            messages=arguments.messages,
            postgres=arguments.postgres,
        )
        for name in arguments.measures or _MEASURES:
            for row in _MEASURES[name](run):
                rows.append(row)
                console.print(f"{row[0]}: {row[1]} (load {os.getloadavg()[0]:.1f})")
    table = Table("measure", "measured", "must", "aim")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    lines = [
        "| measure | measured | must | aim |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    server = f"PostgreSQL {arguments.postgres or 'of the system'}"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "replicas.md").write_text(
        "\n".join([*lines, "", f"{server}. Load at the end: {os.getloadavg()[0]:.1f}", ""])
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__)
    parser.add_argument("measures", nargs="*", help=f"of {', '.join(_MEASURES)} (all)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds, kills and stops (5)")
    parser.add_argument("--messages", type=int, default=200, help="messages of the measurement of times (200)")
    parser.add_argument("--postgres", type=int, help="the version of a server in a package: 16 or 18")
    arguments = parser.parse_args()
    if unknown := set(arguments.measures) - _MEASURES.keys():
        parser.error(f"no such measures: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    main()
