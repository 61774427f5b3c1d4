"""The usage of the limits that apply to a turn, and the refusal if an amount does not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from torana.errors import BudgetSpent
from torana.limits.policies import Limit, Limits, Whose, Window, window_of
from torana.limits.rate_limit_status import LimitStatus, Policy, headers
from torana.messages import Turn
from torana.store.engine.database import Connection
from torana.store.rows import usage
from torana.store.rows.usage import Amount

#: Percentages of a budget whose crossing is logged.
_WARNINGS = (80, 50)

#: Seconds until a retry is worthwhile when too many turns are unanswered.
_TURNS_RESET = 5

_SETTINGS: dict[Whose, str] = {
    "user": "TORANA_LIMITS_PER_USER",
    "token": "TORANA_LIMITS_PER_TOKEN",
    "global": "TORANA_LIMITS_GLOBAL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarning:
    """A budget whose usage has crossed a warning percentage."""

    policy: str
    account: str
    percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedLimit:
    limit: Limit
    account: str
    whose: Whose

    @property
    def name(self) -> str:
        return f"{self.whose}-{self.limit.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUsage:
    """The usage of a limit's window, and the additional amount requested."""

    rule: AppliedLimit
    spent: int
    reserved: int
    #: The maximum and the likely additional amount.
    asked: int
    likely: int
    window: Window | None

    @property
    def is_violated(self) -> bool:
        """Return whether the maximum amount does not fit; if nothing is reserved, the likely amount counts."""
        if self.asked == 0 or self.spent + self.reserved + self.asked <= self.rule.limit.quota:
            return False
        return self.reserved > 0 or self.is_spent

    @property
    def is_spent(self) -> bool:
        """Return whether the likely amount does not fit, even if all reservations are released."""
        return self.spent + self.likely > self.rule.limit.quota

    @property
    def free(self) -> int:
        return max(0, self.rule.limit.quota - self.spent - self.reserved)

    def with_spent(self, spent: int) -> LimitUsage:
        """Return the usage after ``spent`` of the requested amount is spent, and the rest is reserved."""
        reserved = self.reserved + self.asked - spent
        return replace(self, spent=self.spent + spent, reserved=reserved, asked=0, likely=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUsages:
    """Reads the usage of the windows of all limits that apply to a turn."""

    limits: Limits

    def _rules(self, turn: Turn) -> list[AppliedLimit]:
        of_each: list[tuple[Whose, str | None, Sequence[Limit]]] = [
            ("user", turn.user and usage.of_user(turn.user), self.limits.per_user),
            ("token", turn.token and usage.of_token(turn.token), self.limits.per_token),
            ("global", usage.GATEWAY, self.limits.overall),
        ]
        return [
            AppliedLimit(limit=limit, account=account, whose=whose)
            for whose, account, limits in of_each
            if account is not None
            for limit in limits
        ]

    def in_windows(
        self, connection: Connection, turn: Turn, asked: Amount, likely: Amount, at: datetime
    ) -> list[LimitUsage]:
        """Return the usage of the limits with a period, for an additional amount."""
        read: dict[tuple[str, Window], Amount] = {}
        levels: list[LimitUsage] = []
        for rule in self._rules(turn):
            if rule.limit.period is None:
                continue
            window = window_of(rule.limit.period, at)
            key = rule.account, window
            if key not in read:
                read[key] = usage.total(connection, rule.account, first=window.first, last=window.last)
            levels.append(
                LimitUsage(
                    rule=rule,
                    spent=spent_of(rule.limit, read[key]),
                    reserved=reserved_of(rule.limit, read[key]),
                    asked=spent_of(rule.limit, asked) + reserved_of(rule.limit, asked),
                    likely=spent_of(rule.limit, likely) + reserved_of(rule.limit, likely),
                    window=window,
                )
            )
        return levels

    def of_unanswered(self, connection: Connection, turn: Turn) -> list[LimitUsage]:
        """Return the usage of the limits of unanswered turns; the admitted turn is already stored."""
        levels: list[LimitUsage] = []
        for rule in self._rules(turn):
            if rule.limit.period is None:
                user = turn.user if rule.whose == "user" else None
                token = turn.token if rule.whose == "token" else None
                others = usage.count_unanswered(connection, user=user, token=token) - 1
                levels.append(LimitUsage(rule=rule, spent=0, reserved=others, asked=1, likely=1, window=None))
        return levels


def spent_of(limit: Limit, amount: Amount) -> int:
    spent = {"messages": amount.messages, "tokens": amount.tokens, "usd": amount.microusd, "turns": 0}
    return spent[limit.unit]


def reserved_of(limit: Limit, amount: Amount) -> int:
    return {"tokens": amount.reserved_tokens, "usd": amount.reserved_microusd}.get(limit.unit, 0)


def crossed_warnings(levels: Sequence[LimitUsage], charged: Amount) -> list[BudgetWarning]:
    """Return the budgets that a charge brought above a warning level; the levels include the charge."""
    found: list[BudgetWarning] = []
    for level in levels:
        quota = level.rule.limit.quota
        before = level.spent - spent_of(level.rule.limit, charged)
        crossed = next((m for m in _WARNINGS if before * 100 < m * quota <= level.spent * 100), None)
        if crossed is not None:
            found.append(BudgetWarning(policy=level.rule.name, account=level.rule.account, percent=crossed))
    return found


def status_of(level: LimitUsage, at: datetime) -> LimitStatus:
    rule = level.rule
    policy = Policy(
        name=rule.name,
        quota=rule.limit.quota,
        setting=_SETTINGS[rule.whose],
        key=rule.account,
        window=level.window.seconds if level.window else 0,
        counted=rule.limit.unit,
    )
    return LimitStatus(
        policy=policy,
        remaining=level.free,
        reset=_wait(level, at),
        spent=level.spent * 100 // rule.limit.quota if level.window else None,
    )


def _wait(level: LimitUsage, at: datetime) -> int:
    return max(1, math.ceil((level.window.ends - at).total_seconds())) if level.window else _TURNS_RESET


def refusal_of(levels: Sequence[LimitUsage], at: datetime, rates: Sequence[LimitStatus] = ()) -> BudgetSpent:
    """Return the error that names all violated limits; ``rates`` are reported with them."""
    violated = [level for level in levels if level.is_violated]
    # Reservations are released when their requests end.
    wait = max(_wait(one, at) if one.is_spent else min(_wait(one, at), _TURNS_RESET) for one in violated)
    return BudgetSpent(
        " ".join(_describe_violation(level) for level in violated) + f" Try again in {wait} s.",
        headers=headers([*rates, *(status_of(level, at) for level in levels)]) | {"Retry-After": str(wait)},
        extra={"retryAfterMs": wait * 1000, "violatedPolicies": [level.rule.name for level in violated]},
    )


def _describe_violation(level: LimitUsage) -> str:
    limit, setting = level.rule.limit, _SETTINGS[level.rule.whose]
    sentence = f"The limit is {limit.words} ({setting})"
    if limit.unit == "messages":
        return f"{sentence}."
    if limit.unit == "turns":
        return f"{sentence} that are not answered yet."
    if level.likely > limit.quota:
        return (
            f"{sentence}, which is less than the {limit.amount(level.likely)} reserved for one model "
            "call. Raise the limit, or lower TORANA_MAX_OUTPUT_TOKENS."
        )
    return (
        f"{sentence}. {limit.amount(level.free)} are left, and a model call reserves up to "
        f"{limit.amount(level.asked)}."
    )
