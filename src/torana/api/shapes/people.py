"""Bodies of tokens, the audit record and the erasure of a user."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, ConfigDict, Field

from torana.api.shapes.base import CLEAN, Wire
from torana.messages import ID_LIMIT, Scope
from torana.people.tokens import DEFAULT_OVERLAP, DEFAULT_SCOPES, LABEL_LIMIT, LONGEST_LIFE, LONGEST_OVERLAP
from torana.store.tokens import TokenStatus


class TokenRequest(Wire):
    """A token that is wanted. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    user: Annotated[
        Annotated[str, Field(min_length=1, max_length=ID_LIMIT, pattern=CLEAN)] | int | None,
        Field(
            description="Whom the token is bound to: it speaks for this user alone, and sees what is this "
            "user's alone. An integer is its decimal string."
        ),
    ] = None
    scopes: Annotated[
        Annotated[list[Scope], Field(min_length=1)] | None,
        Field(
            description="What it may do. `admin` is everything, for everyone; that and `impersonate` go to no "
            "token that is bound to a user.",
        ),
    ] = sorted(DEFAULT_SCOPES)
    label: Annotated[
        Annotated[str, Field(max_length=LABEL_LIMIT, pattern=CLEAN)] | None,
        Field(description="What it is for."),
    ] = ""
    expires_in: Annotated[
        int | None,
        Field(
            description="Seconds until it expires; null is never.", ge=1, le=int(LONGEST_LIFE.total_seconds())
        ),
    ] = None


class RotationRequest(Wire):
    """How a token is rotated. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    overlap: Annotated[
        Annotated[int, Field(ge=0, le=int(LONGEST_OVERLAP.total_seconds()))] | None,
        Field(description="Seconds in which both secrets are taken; 0 ends the old one at once."),
    ] = int(DEFAULT_OVERLAP.total_seconds())


class TokenBody(Wire):
    """A token, without its secret."""

    id: str
    user: Annotated[str | None, Field(description="Whom it is bound to.")]
    label: str
    scopes: list[Scope]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None
    revoked_at: AwareDatetime | None
    used_at: Annotated[AwareDatetime | None, Field(description="Its last use, to the minute.")]
    replaces: Annotated[str | None, Field(description="The token in whose place it came.")]
    status: TokenStatus


class IssuedTokenBody(TokenBody):
    """A new token, with its secret, which is shown this once."""

    token: Annotated[str, Field(pattern=r"^torana_[A-Za-z0-9_-]{43}$")]


class TokensBody(Wire):
    """A page of tokens."""

    items: list[TokenBody]
    next: Annotated[str | None, Field(description="`after` for the next page.")]


class AuditEntryBody(Wire):
    """An administrative act."""

    id: str
    at: AwareDatetime
    principal: Annotated[
        str, Field(description="Who: `operator`, `local`, or a token such as `token:tok_0198`.")
    ]
    source: Annotated[str, Field(description="From where: an address, or `command line`.")]
    action: Annotated[str, Field(description="What, such as `token.create`.")]
    target: Annotated[str, Field(description="The id of what it was done to.")]
    detail: dict[str, Any]


class AuditBody(Wire):
    """A page of the audit record."""

    items: list[AuditEntryBody]
    next: Annotated[str | None, Field(description="`after` for the next page.")]


class ErasedCounts(Wire):
    """How much was erased."""

    sessions: Annotated[int, Field(description="Sessions in which nobody else spoke.")]
    turns: int
    memories: Annotated[int, Field(description="With those that were superseded.")]
    schedules: int
    keys: Annotated[int, Field(description="Idempotency-Keys that lead nowhere any more.")]
    tokens_revoked: int
    files: Annotated[int, Field(description="Files that the agent kept for the user.")]
    copies: Annotated[int, Field(description="Copies of the whole database in the data directory.")]


class ReceiptBody(Wire):
    """What was erased of a user, and what was not."""

    user: str
    erased_at: AwareDatetime
    counts: ErasedCounts
    kept: list[str]
    out_of_reach: list[str]
