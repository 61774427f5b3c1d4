"""``torana usage``: spending per day as a chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.terminal import on_one_line
from torana.errors import OperatorError
from torana.messages import USAGE_DAYS_LIMIT, utc_now

if TYPE_CHECKING:
    from rich.table import Table

    from torana.limits.usage_reports import Spent, State, UsageReport

app = new_app()

#: The maximum length of a bar, in columns of the terminal.
_BAR = 40


@app.command()
def usage(
    options: CommonOptions,
    user: Annotated[str | None, typer.Option(help="Only usage of this user.")] = None,
    token: Annotated[str | None, typer.Option(help="Only usage of this token, by its id.")] = None,
    days: Annotated[
        int, typer.Option(min=1, max=USAGE_DAYS_LIMIT, help=("The number of days up to today, in UTC."))
    ] = 30,
) -> None:
    """Show messages, tokens and money per day, and the state of the limits.

    The parts of the input tokens (instructions, tools, history) are estimates. The tokens of summaries are also
    contained in the input and output tokens.
    """
    from rich.console import Console

    from torana.api.schemas.usage import SpendingBody
    from torana.config.spending import limits_of
    from torana.limits.usage_reports import Subject, report

    if user is not None and token is not None:
        raise OperatorError("--user and --token exclude each other; give one of them")
    subject = Subject(user=user, token=token)
    work = partial(report, subject=subject, limits=limits_of(options.settings), days=days, at=utc_now())
    found = options.read_store(work)
    if options.as_json:
        spending = SpendingBody.from_report(found).model_dump(mode="json")
        typer.echo(json.dumps({"account": subject.account} | spending, indent=2))
        return
    console = Console(markup=False, highlight=False)
    console.print(on_one_line(subject.account), _plot(found), sep="\n")
    if any(_parts(found.month)):
        console.print("", _parts_table(found.month), sep="\n")
    if found.limits:
        console.print("", _limits(found.limits), sep="\n")


def _plot(found: UsageReport) -> Table:
    """Return a line for each day with usage. Bars show money if any was spent, else tokens, else messages."""
    from rich.bar import Bar
    from rich.table import Column, Table

    heights = [_heights(spent) for _, spent in found.days]
    title, values = next(
        (
            (name, [each[name] for each in heights])
            for name in ("cost", "tokens", "messages")
            if any(each[name] for each in heights)
        ),
        ("messages", [0.0] * len(heights)),
    )
    names = ("messages", "tokens in", "out", "USD")
    numbers = [Column(name, justify="right", no_wrap=True) for name in names]
    bars = Column(title, max_width=_BAR)
    table = Table(Column("day", no_wrap=True), *numbers, bars, box=None, pad_edge=False)
    for (date, spent), value in zip(found.days, values, strict=True):
        if any(_heights(spent).values()):
            table.add_row(date, *_numbers(spent), Bar(max(values) or 1, 0, value))
    table.add_row("this month", *_numbers(found.month), "")
    return table


def _heights(spent: Spent) -> dict[str, float]:
    return {
        "cost": spent.cost_usd,
        "tokens": spent.input_tokens + spent.output_tokens,
        "messages": spent.messages,
    }


def _numbers(spent: Spent) -> list[str]:
    counts = (spent.messages, spent.input_tokens, spent.output_tokens)
    return [*(f"{count:,}" for count in counts), f"{spent.cost_usd:,.4f}"]


def _parts(spent: Spent) -> tuple[int, ...]:
    """Return the estimated parts of the input tokens, and the tokens of summaries."""
    parts = spent.estimated_input
    return parts.instructions, parts.tools, parts.history, spent.summary_tokens


def _parts_table(month: Spent) -> Table:
    from rich.table import Column, Table

    names = ("instructions", "tools", "history", "summaries")
    columns = [Column(name, justify="right", no_wrap=True) for name in names]
    table = Table(Column("tokens in, estimated", no_wrap=True), *columns, box=None, pad_edge=False)
    table.add_row("this month", *(f"{count:,}" for count in _parts(month)))
    return table


def _limits(states: Sequence[State]) -> Table:
    from rich.bar import Bar
    from rich.table import Column, Table

    columns = [Column(name, justify="right", no_wrap=True) for name in ("limit", "used", "held back")]
    bars, ends = Column(max_width=_BAR // 2), Column("free again", no_wrap=True)
    table = Table(Column("policy", no_wrap=True), *columns, bars, ends, box=None, pad_edge=False)
    for state in states:
        numbers = [f"{number:,.10g}" for number in (state.quota, state.used, state.reserved)]
        bar = Bar(state.quota, 0, min(state.quota, state.used + state.reserved))
        until = f"{state.resets_at:%Y-%m-%d %H:%M} UTC" if state.resets_at else "when turns are answered"
        table.add_row(state.policy, *numbers, bar, until)
    return table
