"""Rows of usage by day, model, user, token, channel and schedule.

The sums of a day equal the row of the account ``gateway`` in ``usage``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import MICRO, Turn, Usage
from torana.store.engine.dialects import insert, unread
from torana.store.engine.tables import spending

Dimension = Literal["day", "model", "user", "token", "channel", "schedule"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

_AMOUNTS = ("messages", "input_tokens", "output_tokens", "microusd")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentAmount:
    """An amount of usage; money in micro-dollars."""

    messages: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    microusd: int = 0

    def without(self, other: SpentAmount) -> SpentAmount:
        """Return the difference of two amounts."""
        return SpentAmount(**{name: getattr(self, name) - getattr(other, name) for name in _AMOUNTS})


def add(
    connection: Connection,
    turn: Turn,
    day: str,
    amount: SpentAmount,
    *,
    shares: Usage | None = None,
    with_place: bool = True,
) -> None:
    """Add the usage of a turn. ``shares`` divides it among models; the rest has no known model.

    Without ``with_place`` the channel and the schedule are left out, as ``forget_places`` does.
    """
    causes = {
        "day": day,
        "user": turn.user or "",
        "token": turn.token or "",
        "channel": turn.channel if with_place else "",
        "schedule": (turn.schedule_id if with_place else None) or "",
    }
    rows = [
        causes | {"model": model} | {name: getattr(part, name) for name in _AMOUNTS}
        for model, part in _split(amount, shares or Usage())
        if part != SpentAmount()
    ]
    if rows:
        connection.execute(_ADD, rows)


def total(connection: Connection, *, first: str, last: str) -> SpentAmount:
    """Return the sum between two days, inclusive."""
    return _amount_of(connection.execute(_sums(first, last)).mappings().one())


def sums_by(
    connection: Connection, dimension: Dimension, *, first: str, last: str, limit: int
) -> list[tuple[str, SpentAmount]]:
    """Return the sum for each value of a dimension between two days; '' is usage without such a value.

    The largest cost comes first, but days are in order.
    """
    column = spending.c[dimension]
    query = _sums(first, last).add_columns(column.label("value")).group_by(column)
    if dimension == "day":
        query = query.order_by(column)
    else:
        query = query.order_by(sa.desc("microusd"), sa.desc("input_tokens"), sa.desc("messages"), column)
    return [(row["value"], _amount_of(row)) for row in connection.execute(query.limit(limit)).mappings()]


def forget_places(connection: Connection, user: str) -> None:
    """Remove the channels and schedules from a user's rows; the amounts stay under the user."""
    kept = [spending.c[name] for name in ("day", "model", "user", "token")]
    sums = [sa.func.sum(spending.c[name]).label(name) for name in _AMOUNTS]
    blank = [sa.literal("").label("channel"), sa.literal("").label("schedule")]
    query = sa.select(*kept, *blank, *sums).where(spending.c.user == user).group_by(*kept)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    connection.execute(sa.delete(spending).where(spending.c.user == user))
    if rows:
        connection.execute(_ADD, rows)


def _split(amount: SpentAmount, shares: Usage) -> Sequence[tuple[str, SpentAmount]]:
    """Divide an amount exactly: each model gets its share, and the last share the rounding difference."""
    parts: list[tuple[str, SpentAmount]] = []
    rest = amount
    for model, used in shares.shares:
        part = SpentAmount(
            input_tokens=min(rest.input_tokens, used.input_tokens),
            output_tokens=min(rest.output_tokens, used.output_tokens),
            microusd=min(rest.microusd, round(used.cost_usd * MICRO)),
        )
        rest = rest.without(part)
        parts.append((model, part))
    if parts and rest.microusd <= len(parts):  # less than a micro-dollar for each share
        model, part = parts[-1]
        parts[-1] = (model, replace(part, microusd=part.microusd + rest.microusd))
        rest = replace(rest, microusd=0)
    return [*parts, ("", rest)]


def _sums(first: str, last: str) -> sa.Select[tuple[int, ...]]:
    sums = [sa.func.coalesce(sa.func.sum(spending.c[name]), 0).label(name) for name in _AMOUNTS]
    # PostgreSQL does not accept the collation of a parameter of BETWEEN.
    return sa.select(*sums).where(spending.c.day >= first, spending.c.day <= last)


def _amount_of(row: RowMapping) -> SpentAmount:
    return SpentAmount(**{name: int(row[name]) for name in _AMOUNTS})


def _adding() -> sa.Insert:
    new = insert(spending)
    return new.on_conflict_do_update(
        index_elements=["day", "model", "user", "token", "channel", "schedule"],
        set_={name: spending.c[name] + new.excluded[name] for name in _AMOUNTS},
    )


_ADD = unread(_adding())
