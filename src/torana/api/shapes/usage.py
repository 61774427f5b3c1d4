"""Bodies of what was spent."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from torana.api.shapes.base import Wire


class SpentBody(Wire):
    """What was counted in a time."""

    messages: int
    input_tokens: int
    output_tokens: int
    cost_usd: float


class SpentDay(SpentBody):
    """What was counted on a day, in UTC."""

    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class LimitState(Wire):
    """How a limit stands, in messages, tokens, dollars or turns."""

    policy: Annotated[str, Field(description="Its name, as in `violatedPolicies`.")]
    quota: float
    used: float
    reserved: Annotated[float, Field(description="Held back for calls that are not answered yet.")]
    resets_at: Annotated[AwareDatetime | None, Field(description="Null for turns at once.")]


class SpendingBody(Wire):
    """What was spent: so many days up to today, and how the limits stand."""

    days: Annotated[list[SpentDay], Field(description="The oldest first, none left out.")]
    today: SpentBody
    month: SpentBody
    limits: list[LimitState]


class UserSpendingBody(SpendingBody):
    """What a user spent."""

    user: str
