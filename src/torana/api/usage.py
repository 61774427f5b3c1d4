"""What was spent, by users and by all together."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from torana.api import shapes
from torana.api.access import needs
from torana.api.openapi import COMMON, documented
from torana.api.services import NO_STORE, Services
from torana.api.user_ids import UserInPath
from torana.errors import BadRequest, InvalidField, NotFound
from torana.limits.spending import LONGEST, Report, Spent, Subject

_Days = Annotated[
    str,
    Query(
        description=f"How many days up to today: 1 to {LONGEST}, else the nearest.",
        max_length=20,
        json_schema_extra={"pattern": "^[0-9]+$"},
    ),
]


def add_usage(router: APIRouter, services: Services) -> None:
    """``/v1/usage`` and ``/v1/users/{id}/usage``."""

    @router.get(
        "/v1/usage",
        dependencies=[needs("admin")],
        response_model=shapes.SpendingBody,
        response_description="What was spent.",
        responses=documented(*COMMON, BadRequest),
        summary="What all together spent, day by day, and how the limits for all stand",
    )
    async def usage(days: _Days = "30") -> Response:
        report = await services.spending.report(Subject(), days=_days(days))
        return JSONResponse(spending_body(report), headers=NO_STORE)

    @router.get(
        "/v1/users/{user_id}/usage",
        dependencies=[needs("read")],
        response_model=shapes.UserSpendingBody,
        response_description="What the user spent.",
        responses=documented(*COMMON, BadRequest, NotFound),
        summary="What a user spent, day by day, and how the user's limits stand",
    )
    async def user_usage(user: UserInPath, days: _Days = "30") -> Response:
        report = await services.spending.report(Subject(user=user), days=_days(days))
        return JSONResponse({"user": user} | spending_body(report), headers=NO_STORE)


def spending_body(report: Report) -> dict[str, Any]:
    """A report as it travels."""
    return {
        "days": [{"date": date} | _spent(spent) for date, spent in report.days],
        "today": _spent(report.today),
        "month": _spent(report.month),
        "limits": [
            {
                "policy": state.policy,
                "quota": state.quota,
                "used": state.used,
                "reserved": state.reserved,
                "resetsAt": state.resets_at and state.resets_at.isoformat(),
            }
            for state in report.limits
        ],
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return {
        "messages": spent.messages,
        "inputTokens": spent.input_tokens,
        "outputTokens": spent.output_tokens,
        "costUsd": spent.cost_usd,
    }


def _days(text: str) -> int:
    """How many days are told of: what was asked for, or the nearest there is. Raises ``InvalidField``."""
    if not text.isascii() or not text.isdecimal():
        raise InvalidField(f"`days` must be a whole number from 1 to {LONGEST}.")
    return max(1, min(int(text), LONGEST))
