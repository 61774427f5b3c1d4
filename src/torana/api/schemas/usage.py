"""Bodies of usage reports."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Self

from pydantic import Field

from torana.api.schemas.base import Time, Wire
from torana.api.schemas.contract import InputPartsBody
from torana.limits.usage_reports import UsageReport


class SpentBody(Wire):
    """The usage in a period."""

    messages: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    estimated_input: InputPartsBody
    summary_tokens: Annotated[
        int, Field(description="The input and output tokens of summaries, which the other numbers contain.")
    ]


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
        """Return the body of a report, with the fields that only this class has."""
        return cls.model_validate(
            {
                "days": [{"date": date, **asdict(spent)} for date, spent in report.days],
                "today": report.today,
                "month": report.month,
                "limits": report.limits,
                **fields,
            }
        )


class UserSpendingBody(SpendingBody):
    """The usage of a user."""

    user: str
