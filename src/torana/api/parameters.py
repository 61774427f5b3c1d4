"""Parameters of several paths."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request

from torana.api.dependencies import current_principal
from torana.api.user_ids import read_user_id
from torana.errors import InvalidField, NotFound
from torana.messages import ID_LIMIT
from torana.paging import LARGEST_PAGE, PAGE_CHARACTERS, read_time

Id = Annotated[str, Path(max_length=100)]
After = Annotated[str, Query(description="The `next` of the previous page.", max_length=200)]
Limit = Annotated[
    str,
    Query(
        description=f"The number of items, 1 to {LARGEST_PAGE}; a number outside of this range counts "
        f"as its nearest bound. A page with more than {PAGE_CHARACTERS:,} characters ends early.",
        max_length=20,
        json_schema_extra={"pattern": "^[0-9]+$"},
    ),
]

Since = Annotated[
    str,
    Query(
        description="Only from this time on, as in RFC 3339 with a time zone.",
        max_length=40,
        json_schema_extra={"examples": ["2026-05-01T00:00:00Z"]},
    ),
]
Until = Annotated[str, Query(description="Only before this time.", max_length=40)]

LastEventId = Annotated[
    str, Header(alias="Last-Event-ID", description="The id of the last event that the client received.")
]
AfterEvent = Annotated[str, Query(description="`Last-Event-ID`, for clients that cannot send headers.")]


def one_of_values(description: str, values: Sequence[str], *, optional: bool = True) -> Any:
    """Return the query parameter with one of the values; an ``optional`` one can be empty."""
    allowed = ["", *values] if optional else list(values)
    return Query(description=description, max_length=20, json_schema_extra={"enum": allowed})


#: The 400 of an endpoint with these parameters.
INVALID_PAGE = "`limit` or `after` is invalid."
#: The description and the 429 of an endpoint whose requests count as messages.
COUNTS_AS_MESSAGE = "Counts as a message for the rate limits."
RATE_LIMITED = "A rate limit is used up. `Retry-After` says when to try again."


def page_size(limit: str) -> int:
    """Return the number of items of a page, limited to the allowed range. Raises ``InvalidField``."""
    return bounded_number("limit", limit, 1, LARGEST_PAGE)


def bounded_number(name: str, text: str, least: int, most: int) -> int:
    """Return the whole number in a parameter, or its nearest bound. Raises ``InvalidField``."""
    if not text.isascii() or not text.isdecimal():
        raise InvalidField(f"`{name}` must be a whole number from {least} to {most}.")
    return max(least, min(int(text), most))


def time_of(name: str, text: str) -> datetime | None:
    """Return the time in a parameter, or None for an empty one. Raises ``InvalidField``."""
    if not text:
        return None
    time = read_time(text)
    if time is None:
        raise InvalidField(f"`{name}` must be a time with a time zone, such as 2026-05-01T00:00:00Z.")
    return time


_UserSegment = Annotated[str, Path(alias="user_id", max_length=6 * ID_LIMIT)]


async def _user_in_path(request: Request, segment: _UserSegment) -> str:
    user = read_user_id(segment)
    principal = current_principal(request)
    may_name = principal.user is None and not principal.scopes.isdisjoint(("admin", "impersonate"))
    if principal.user != user and not may_name:
        raise NotFound(f"there is no user {segment!r}")
    return user


#: The user of ``/v1/users/{user_id}/…``. Raises ``NotFound`` for a token that may not name this user.
UserInPath = Annotated[str, Depends(_user_in_path)]
