"""Rows of usage and reservations, by account and period; each turn's row has its own reservation.

A period is a day such as ``2026-11-20`` or a minute such as ``2026-11-20T22:05``, in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import MICRO, InputParts, Turn, Usage
from torana.store.engine.dialects import FloatSum, Larger, insert, unread
from torana.store.engine.tables import equal_to, turns, unfinished, usage
from torana.store.rows.reports import spending

#: The account of the whole gateway.
GATEWAY = "gateway"

#: The columns of a turn's usage.
USED = ("input_tokens", "output_tokens", "cost_usd", "instruction_tokens", "tool_tokens", "history_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """An amount that was counted or reserved; money in micro-dollars."""

    messages: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    microusd: int = 0
    #: Estimated parts of ``input_tokens``.
    instruction_tokens: int = 0
    tool_tokens: int = 0
    history_tokens: int = 0
    #: The tokens of summaries. ``input_tokens`` and ``output_tokens`` contain them.
    summary_tokens: int = 0
    reserved_tokens: int = 0
    reserved_microusd: int = 0

    @property
    def tokens(self) -> int:
        """Return the sum of input and output tokens."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The reservation for a turn's next model request with its period, and the turn's usage so far.

    ``requests`` is the number of requests that were sent and are not settled.
    """

    tokens: int
    microusd: int
    on: str | None
    used: Usage
    requests: int = 0


def of_user(user: str) -> str:
    """Return the account of a user."""
    return f"user:{user}"


def of_token(token: str) -> str:
    """Return the account of a token and its successors, by the first token's id."""
    return f"token:{token}"


def accounts_of(turn: Turn) -> list[str]:
    """Return the accounts that a turn is charged to."""
    accounts = [GATEWAY]
    if turn.user is not None:
        accounts.append(of_user(turn.user))
    if turn.token is not None:
        accounts.append(of_token(turn.token))
    return accounts


def total(connection: Connection, account: str, *, first: str, last: str) -> Amount:
    """Return the sum of an account's rows between two periods of the same kind, inclusive."""
    window = {"account": account, "first": first, "last": last, "length": len(first)}
    return _amount(connection.execute(_TOTAL, window).mappings().one())


def by_period(connection: Connection, account: str, *, first: str, last: str) -> list[tuple[str, Amount]]:
    """Return an account's rows between two periods of the same kind, inclusive, in order."""
    window = {"account": account, "first": first, "last": last, "length": len(first)}
    return [(row["period"], _amount(row)) for row in connection.execute(_ROWS, window).mappings()]


def add(connection: Connection, accounts: Sequence[str], periods: Sequence[str], amount: Amount) -> None:
    """Add an amount to the accounts' rows, which are created if needed."""
    values = _values(amount)
    rows = [{"account": account, "period": period} | values for account in accounts for period in periods]
    connection.execute(_ADD, rows)


def forget_minutes(connection: Connection, accounts: Sequence[str], *, before: str) -> None:
    """Delete the accounts' rows of minutes before a period."""
    keys = [{"key": account, "before": before, "length": len(before)} for account in accounts]
    connection.execute(_FORGET_MINUTES, keys)


def is_stored(connection: Connection, turn_id: str) -> bool:
    """Return whether a turn has a row; the rows of erased turns are deleted."""
    return connection.execute(_READ_RESERVATION, {"id": turn_id}).first() is not None


def read_reservation(connection: Connection, turn_id: str) -> Reservation:
    """Return the reservation and the usage of a turn."""
    return reservation_of(connection.execute(_READ_RESERVATION, {"id": turn_id}).mappings().one())


def reservation_of(row: RowMapping) -> Reservation:
    """Return the reservation and usage from a row with the columns ``RESERVATION_COLUMNS``."""
    return Reservation(
        tokens=row["reserved_tokens"],
        microusd=row["reserved_microusd"],
        on=row["reserved_on"],
        used=used_in(row),
        requests=row["open_requests"],
    )


def used_in(row: Mapping[Any, Any]) -> Usage:
    """Return the usage in a turn's row."""
    parts = InputParts(
        instructions=row["instruction_tokens"], tools=row["tool_tokens"], history=row["history_tokens"]
    )
    return Usage(
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cost_usd=row["cost_usd"],
        estimated_input=parts,
    )


def usage_values(used: Usage) -> dict[str, int | float]:
    """Return the values of a turn's columns ``USED``."""
    parts = used.estimated_input
    tokens = (used.input_tokens, used.output_tokens, used.cost_usd)
    return dict(zip(USED, (*tokens, parts.instructions, parts.tools, parts.history), strict=True))


def store_reservation(connection: Connection, turn_id: str, held: Reservation) -> None:
    """Store a turn's reservation and usage on its row."""
    connection.execute(
        _STORE_RESERVATION,
        {
            "key": turn_id,
            "reserved_tokens": held.tokens,
            "reserved_microusd": held.microusd,
            "reserved_on": held.on,
            "open_requests": held.requests,
            **usage_values(held.used),
        },
    )


def settle(
    connection: Connection, turn: Turn, *, spent: Usage, at: datetime, before: Reservation | None = None
) -> Usage:
    """Charge the usage that a turn has ``spent`` since the last settlement, and release its reservation.

    ``before`` is the turn's reservation and usage, if it was just read. The usage is charged to the period of
    the reservation, or else to the day of ``at``. Returns the turn's total usage, which the caller stores in
    the same transaction.
    """
    before = before or read_reservation(connection, turn.id)
    used = _sum(before.used, spent)
    charged = difference(before.used, used)
    accounts = accounts_of(turn)
    if charged != Amount():
        spending.add(connection, turn, (before.on or f"{at:%Y-%m-%d}")[:10], spent_of(charged), shares=spent)
    if before.on is not None:
        # Only existing rows: a minute's row may have been deleted.
        freed = _values(charged) | {"reserved_tokens": before.tokens, "reserved_microusd": before.microusd}
        periods = dict.fromkeys((before.on[:10], before.on))
        keys = [{"key": account, "at": period} for account in accounts for period in periods]
        connection.execute(_SETTLE, [freed | key for key in keys])
    elif charged != Amount():
        add(connection, accounts, [f"{at:%Y-%m-%d}"], charged)
    return used


def spent_of(amount: Amount) -> spending.SpentAmount:
    """Return an amount without its reservation."""
    return spending.SpentAmount(
        messages=amount.messages,
        input_tokens=amount.input_tokens,
        output_tokens=amount.output_tokens,
        microusd=amount.microusd,
    )


def count_unanswered(connection: Connection, *, user: str | None = None, token: str | None = None) -> int:
    """Return the number of unfinished turns of a user, of a token, or of all."""
    wanted = equal_to({turns.c.user: user, turns.c.token: token})
    query = sa.select(sa.func.count()).select_from(turns).where(unfinished, *wanted)
    return connection.execute(query).scalar_one()


def difference(before: Usage, now: Usage) -> Amount:
    """Return the usage that was added between two totals of a turn; never negative."""
    parts, earlier = now.estimated_input, before.estimated_input
    return Amount(
        instruction_tokens=max(0, parts.instructions - earlier.instructions),
        tool_tokens=max(0, parts.tools - earlier.tools),
        history_tokens=max(0, parts.history - earlier.history),
        input_tokens=max(0, now.input_tokens - before.input_tokens),
        output_tokens=max(0, now.output_tokens - before.output_tokens),
        microusd=max(0, round(now.cost_usd * MICRO) - round(before.cost_usd * MICRO)),
    )


def _sum(first: Usage, second: Usage) -> Usage:
    return Usage(
        input_tokens=first.input_tokens + second.input_tokens,
        output_tokens=first.output_tokens + second.output_tokens,
        cost_usd=first.cost_usd + second.cost_usd,
        estimated_input=first.estimated_input + second.estimated_input,
    )


def _amount(row: RowMapping) -> Amount:
    return Amount(**{name: max(0, int(row[name] or 0)) for name in _AMOUNTS})


def _values(amount: Amount) -> dict[str, int]:
    return {name: getattr(amount, name) for name in _AMOUNTS}


_AMOUNTS = [field.name for field in fields(Amount)]
# The length distinguishes days from minutes, which sort between them.
_IN_WINDOW = (
    (usage.c.account == sa.bindparam("account"))
    & (usage.c.period >= sa.bindparam("first"))
    & (usage.c.period <= sa.bindparam("last"))
    & (sa.func.length(usage.c.period) == sa.bindparam("length"))
)
# SQL's ``sum`` of integers fails above 64 bits, and rows of an older version may exceed them.
_TOTAL = sa.select(*(FloatSum(usage.c[name]).label(name) for name in _AMOUNTS)).where(_IN_WINDOW)
_ROWS = sa.select(usage).where(_IN_WINDOW).order_by(usage.c.period)


def _adding() -> Any:
    new = insert(usage)
    sums = {name: usage.c[name] + new.excluded[name] for name in _AMOUNTS}
    return new.on_conflict_do_update(index_elements=["account", "period"], set_=sums)


_ADD = unread(_adding())
_FREED = ("reserved_tokens", "reserved_microusd")
_SETTLE = unread(
    sa.update(usage)
    .where(usage.c.account == sa.bindparam("key"), usage.c.period == sa.bindparam("at"))
    .values(
        {name: usage.c[name] + sa.bindparam(name) for name in _AMOUNTS if name not in _FREED}
        | {name: Larger(0, usage.c[name] - sa.bindparam(name)) for name in _FREED}
    )
)
_FORGET_MINUTES = unread(
    sa.delete(usage).where(
        usage.c.account == sa.bindparam("key"),
        usage.c.period < sa.bindparam("before"),
        sa.func.length(usage.c.period) == sa.bindparam("length"),
    )
)
#: The columns of a turn's reservation and usage.
RESERVATION_COLUMNS = (
    turns.c.reserved_tokens,
    turns.c.reserved_microusd,
    turns.c.reserved_on,
    turns.c.open_requests,
    *(turns.c[name] for name in USED),
)
_READ_RESERVATION = sa.select(*RESERVATION_COLUMNS).where(turns.c.id == sa.bindparam("id"))
_STORE_RESERVATION = unread(sa.update(turns).where(turns.c.id == sa.bindparam("key")))
