"""Reports of the usage per day and of the state of the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from torana.limits.limit_usage import reserved_of, spent_of
from torana.limits.policies import Limit, Limits, Unit, Whose, day_of, window_of
from torana.messages import MICRO, InputParts, utc_now
from torana.store.engine.database import Connection, Database
from torana.store.rows import tokens, usage
from torana.store.rows.reports import spending
from torana.store.rows.reports.spending import Dimension
from torana.store.rows.usage import Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of a report: a user, a token, or with neither the whole gateway."""

    user: str | None = None
    token: str | None = None

    @property
    def account(self) -> str:
        if self.user is not None:
            return usage.of_user(self.user)
        return usage.GATEWAY if self.token is None else usage.of_token(self.token)

    @property
    def whose(self) -> Whose:
        if self.user is not None:
            return "user"
        return "global" if self.token is None else "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The usage in a period; money in dollars."""

    messages: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    estimated_input: InputParts
    summary_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a limit, in its own unit; a limit on concurrent turns has no end."""

    policy: str
    unit: Unit
    quota: float
    used: float
    reserved: float
    resets_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """The usage of consecutive days, oldest first, of today and of this month, and the limits."""

    days: Sequence[tuple[str, Spent]]
    today: Spent
    month: Spent
    limits: Sequence[State]


def report(connection: Connection, subject: Subject, *, limits: Limits, days: int, at: datetime) -> UsageReport:
    """Return the usage report of a subject for the last ``days`` days."""
    at = at.astimezone(UTC)
    if subject.token is not None:
        subject = replace(subject, token=tokens.root(connection, subject.token))
    names = [day_of(at - timedelta(days=back)) for back in reversed(range(days))]
    rows = dict(usage.by_period(connection, subject.account, first=names[0], last=names[-1]))
    month = window_of("month", at)
    own = {"user": limits.per_user, "token": limits.per_token, "global": limits.overall}[subject.whose]
    total = partial(usage.total, connection, subject.account)
    return UsageReport(
        days=[(name, _spending(rows.get(name, Amount()))) for name in names],
        today=_spending(total(first=day_of(at), last=day_of(at))),
        month=_spending(total(first=month.first, last=month.last)),
        limits=[_state(connection, subject, limit, at) for limit in own],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The usage of a period by the values of a dimension; '' is usage without such a cause.

    ``other`` is the usage of the values that are not listed. All amounts together are ``total``.
    """

    groups: Sequence[tuple[str, spending.SpentAmount]]
    other: spending.SpentAmount
    total: spending.SpentAmount


def break_down(connection: Connection, by: Dimension, *, days: int, limit: int, at: datetime) -> Breakdown:
    at = at.astimezone(UTC)
    period = {"first": day_of(at - timedelta(days=days - 1)), "last": day_of(at)}
    groups = spending.sums_by(connection, by, **period, limit=limit)
    total = other = spending.total(connection, **period)
    for _, spent in groups:
        other = other.without(spent)
    return Breakdown(groups=groups, other=other, total=total)


class Spending:
    """Reports the usage of users, tokens and the whole gateway."""

    def __init__(self, *, database: Database, limits: Limits, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock

    async def report(self, subject: Subject, *, days: int) -> UsageReport:
        work = partial(report, subject=subject, limits=self._limits, days=days, at=self._clock())
        return await self._database.run(work)

    async def break_down(self, by: Dimension, *, days: int, limit: int) -> Breakdown:
        return await self._database.run(partial(break_down, by=by, days=days, limit=limit, at=self._clock()))


def _spending(amount: Amount) -> Spent:
    return Spent(
        messages=amount.messages,
        input_tokens=amount.input_tokens,
        output_tokens=amount.output_tokens,
        cost_usd=amount.microusd / MICRO,
        estimated_input=InputParts(
            instructions=amount.instruction_tokens, tools=amount.tool_tokens, history=amount.history_tokens
        ),
        summary_tokens=amount.summary_tokens,
    )


def _state(connection: Connection, subject: Subject, limit: Limit, at: datetime) -> State:
    policy = f"{subject.whose}-{limit.label}"
    if limit.period is None:
        waiting = usage.count_unanswered(connection, user=subject.user, token=subject.token)
        return State(
            policy=policy, unit=limit.unit, quota=limit.quota, used=waiting, reserved=0, resets_at=None
        )
    window = window_of(limit.period, at)
    amount = usage.total(connection, subject.account, first=window.first, last=window.last)
    return State(
        policy=policy,
        unit=limit.unit,
        quota=limit.quota / limit.scale,
        used=spent_of(limit, amount) / limit.scale,
        reserved=reserved_of(limit, amount) / limit.scale,
        resets_at=window.ends,
    )
