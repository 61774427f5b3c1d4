"""Usage reports."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from torana.api.dependencies import services_of
from torana.api.openapi import problem_responses
from torana.api.parameters import Limit, UserInPath, bounded_number, one_of_values, page_size
from torana.api.request_body import one_of
from torana.api.routes.router import new_router, require_scopes
from torana.api.schemas.usage import BreakdownBody, GatewaySpendingBody, UserSpendingBody
from torana.limits.usage_reports import Subject
from torana.messages import USAGE_DAYS_LIMIT
from torana.store.rows.reports.spending import DIMENSIONS

_Days = Annotated[
    str,
    Query(
        description=f"The number of days up to today, 1 to {USAGE_DAYS_LIMIT}; "
        "a number outside of this range counts as its nearest bound.",
        max_length=20,
        json_schema_extra={"pattern": "^[0-9]+$"},
    ),
]
_By = Annotated[
    str,
    one_of_values(
        "Also break the usage of these days down by this dimension, into at most `limit` groups.", DIMENSIONS
    ),
]
_INVALID = "`days` is invalid."

router = new_router()


@router.get(
    "/v1/usage",
    dependencies=[require_scopes("admin")],
    response_description="The usage of all users together.",
    responses=problem_responses({400: "`days`, `by` or `limit` is invalid."}),
    summary="Get the usage of all users together, and the state of the global limits",
)
async def usage(request: Request, days: _Days = "30", by: _By = "", limit: Limit = "50") -> GatewaySpendingBody:
    spending = services_of(request).spending
    period, largest = bounded_number("days", days, 1, USAGE_DAYS_LIMIT), page_size(limit)
    found = None
    if by:
        dimension = one_of("by", by, DIMENSIONS)
        parts = await spending.break_down(dimension, days=period, limit=largest)
        found = BreakdownBody.from_breakdown(dimension, parts)
    return GatewaySpendingBody.from_report(await spending.report(Subject(), days=period), breakdown=found)


@router.get(
    "/v1/users/{user_id}/usage",
    dependencies=[require_scopes("read")],
    response_description="The usage of the user.",
    responses=problem_responses(
        {400: _INVALID, 404: "The token may not read this user, or the id is invalid."}
    ),
    summary="Get the usage of a user by day, and the state of the user's limits",
)
async def user_usage(request: Request, user: UserInPath, days: _Days = "30") -> UserSpendingBody:
    report = await services_of(request).spending.report(
        Subject(user=user), days=bounded_number("days", days, 1, USAGE_DAYS_LIMIT)
    )
    return UserSpendingBody.from_report(report, user=user)
