"""``python -m bench``: measure, print a table, and write ``bench/results/latest.md``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import report
from bench.measures import run
from bench.peers import PEERS, Peer

RESULTS = Path(__file__).with_name("results")

#: With ``--short`` only a ratio that misses its bound by this factor is an error, because machines are shared.
MARGIN = 2.0


def main() -> None:
    """Measure as the arguments say, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of rounds; the results are their medians (3)"
    )
    parser.add_argument(
        "--messages", type=int, default=200, help="messages of each measurement in a round (200)"
    )
    parser.add_argument(
        "--peer",
        choices=PEERS,
        action="append",
        default=[],
        help="also measure this gateway, installed in its own environment; repeat it for several",
    )
    parser.add_argument(
        "--short", action="store_true", help="one small round; fails if a ratio misses its bound by far"
    )
    arguments = parser.parse_args()
    rounds, messages = (1, 60) if arguments.short else (arguments.rounds, arguments.messages)
    console = Console(stderr=True)
    peers = [_installed(PEERS[name], console) for name in arguments.peer]
    with tempfile.TemporaryDirectory(prefix="torana-bench-") as home, console.status("starting") as status:
        results = run(
            Path(home), rounds=rounds, messages=messages, peers=peers, show=lambda text: status.update(text)
        )
    page = report.markdown(results, rounds=rounds, messages=messages)
    _print(results)
    if arguments.short:
        _fail_where_far(results)
    else:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "latest.md").write_text(page)
        report.draw(results, RESULTS)
        console.print(f"written: {RESULTS / 'latest.md'}")


def _print(results: report.Results) -> None:
    table = Table("measure", "measured", "must", "aim", "")
    for goal in report.goals(results):
        verdict = "aim" if goal.reached(goal.aim) else "must" if goal.reached(goal.must) else "missed"
        value = f"{goal.value:.4g} {goal.unit}"
        table.add_row(goal.measure, value, f"{goal.must:.4g}", f"{goal.aim:.4g}", verdict)
    Console().print(table)


def _fail_where_far(results: report.Results) -> None:
    far = [
        goal.measure
        for goal in report.goals(results)
        if goal.unit == "×" and not goal.reached(goal.must / MARGIN if goal.rising else goal.must * MARGIN)
    ]
    if far:
        sys.exit(f"far from the required values: {', '.join(far)}")


def _installed(peer: Peer, console: Console) -> Peer:
    with console.status(f"installing {peer.requirement} into {peer.programs.parent}"):
        peer.install()
    return peer


if __name__ == "__main__":
    main()
