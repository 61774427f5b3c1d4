"""Bodies of usage reports."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Self

from pydantic import Field

from torana.api.schemas.base import Time, Wire
from torana.api.schemas.contract import InputPartsBody
from torana.limits.usage_reports import Breakdown, UsageReport
from torana.messages import MICRO
from torana.store.rows.reports.spending import Dimension, SpentAmount


class AmountBody(Wire):
    """Messages, tokens and dollars."""

    messages: int
    input_tokens: int
    output_tokens: int
    cost_usd: float


class SpentBody(AmountBody):
    """The usage in a period."""

    estimated_input: InputPartsBody
    summary_tokens: int
    """The tokens of summaries, which `inputTokens` and `outputTokens` contain."""


class SpentDay(SpentBody):
    """The usage of a day, in UTC."""

    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class LimitState(Wire):
    """The state of a limit, in messages, tokens, dollars or turns."""

    policy: Annotated[str, Field(description="The name of the limit, as in `violatedPolicies`.")]
    quota: float
    used: float
    reserved: Annotated[float, Field(description="The amount that is reserved for calls in progress.")]
    resets_at: Annotated[Time | None, Field(description="Null for a limit on concurrent turns.")]


class SpendingBody(Wire):
    """The usage of the last days up to today, and the state of the limits."""

    days: Annotated[list[SpentDay], Field(description="Every day, the oldest first.")]
    today: SpentBody
    month: SpentBody
    limits: list[LimitState]

    @classmethod
    def from_report(cls, report: UsageReport, /, **fields: Any) -> Self:
        """Return the body of a report; ``fields`` are the other fields of a subclass."""
        return cls.model_validate(
            {
                "days": [{"date": date, **asdict(spent)} for date, spent in report.days],
                "today": report.today,
                "month": report.month,
                "limits": report.limits,
                **fields,
            }
        )


class MicroSpentBody(AmountBody):
    """An exact amount of usage."""

    cost_micro_usd: Annotated[int, Field(description="The cost in millionths of a dollar.")]

    @classmethod
    def from_spent(cls, spent: SpentAmount, /, **fields: Any) -> Self:
        """Return the body of an amount; ``fields`` are the other fields of a subclass."""
        return cls.from_object(spent, cost_usd=spent.microusd / MICRO, cost_micro_usd=spent.microusd, **fields)


class SpentGroup(MicroSpentBody):
    """The usage of one value of `by`."""

    value: str | None
    """The day, model, user, token, channel or schedule. Null for usage without such a value (a
    message has no model), and for usage from before Torana stored these values.
    """


class BreakdownBody(Wire):
    """The usage by a dimension. The groups and `other` add up to `total`."""

    by: Dimension
    groups: Annotated[list[SpentGroup], Field(description="The largest cost first; days in order.")]
    other: Annotated[MicroSpentBody, Field(description="The usage of the values that are not listed.")]
    total: MicroSpentBody

    @classmethod
    def from_breakdown(cls, by: Dimension, found: Breakdown) -> Self:
        """Return the body of a breakdown."""
        return cls(
            by=by,
            groups=[SpentGroup.from_spent(spent, value=value or None) for value, spent in found.groups],
            other=MicroSpentBody.from_spent(found.other),
            total=MicroSpentBody.from_spent(found.total),
        )


class GatewaySpendingBody(SpendingBody):
    """The usage of the whole gateway."""

    breakdown: Annotated[BreakdownBody | None, Field(description="The usage of these days; null without `by`.")]


class UserSpendingBody(SpendingBody):
    """The usage of a user."""

    user: str
