"""Bodies of tokens, the audit record and the erasure of a user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from torana.api.schemas.base import CLEAN, Id, Page, ReadFrom, Renamed, RequestBody, Time, Wire
from torana.messages import DEFAULT_SCOPES, Scope, utc_now
from torana.people.erasure import Receipt
from torana.people.tokens import DEFAULT_OVERLAP, LABEL_LIMIT, LONGEST_LIFE, LONGEST_OVERLAP
from torana.store.rows.tokens import Token, TokenStatus

_LONGEST_LIFE = int(LONGEST_LIFE.total_seconds())
_LONGEST_OVERLAP = int(LONGEST_OVERLAP.total_seconds())
#: Larger numbers are reduced to this one, which is above every limit.
_LARGEST = 10**12


def _sort(scopes: Iterable[Any]) -> list[Any]:
    return sorted(scopes)


#: The scopes of a token, sorted. Pydantic would parse the signature of a built-in function as source.
Scopes = Annotated[list[Scope], BeforeValidator(_sort)]


def whole_number(value: object) -> int:
    """Return a whole number, also of a form such as 60.0 (JSON Schema, 6.1.1)."""
    is_whole = isinstance(value, int | Decimal) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole:
        raise ValueError("must be a whole number of seconds")
    return int(max(-_LARGEST, min(value, _LARGEST)))  # pyright: ignore[reportArgumentType]


class TokenRequest(RequestBody):
    """A token to create. Unknown fields are ignored."""

    user: Annotated[Id, Field(min_length=1)] | None = None
    """The user that the token is bound to. It acts for this user only, and sees only the user's data. An
    integer stands for its decimal string.
    """
    scopes: Annotated[list[Scope], Field(min_length=1)] | None = sorted(DEFAULT_SCOPES)
    """The scopes of the token. `admin` permits everything, for all users. A token that is bound to a user
    cannot have `admin` or `impersonate`.
    """
    label: Annotated[str, Field(max_length=LABEL_LIMIT, pattern=CLEAN)] | None = ""
    """A description of the token's purpose."""
    expires_in: Annotated[int, Field(ge=1, le=_LONGEST_LIFE), BeforeValidator(whole_number)] | None = None
    """Seconds until the token expires; null for a token that does not expire."""


class RotationRequest(RequestBody):
    """The options of a token rotation. Unknown fields are ignored."""

    overlap: Annotated[int, Field(ge=0, le=_LONGEST_OVERLAP), BeforeValidator(whole_number)] | None = int(
        DEFAULT_OVERLAP.total_seconds()
    )
    """Seconds for which the old token remains valid; 0 ends it at once."""


class TokenBody(Wire):
    """A token without its secret."""

    id: str
    user: Annotated[str | None, Field(description="The user that the token is bound to.")]
    label: str
    scopes: Scopes
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    used_at: Annotated[Time | None, Field(description="The time of its last use, to the minute.")]
    replaces: Annotated[str | None, Field(description="The token that this token replaced.")]
    status: TokenStatus

    @classmethod
    def from_token(cls, token: Token, /, **fields: Any) -> Self:
        """Return the body of a stored token; ``fields`` are the other fields of a subclass."""
        return cls.from_object(token, status=token.status(utc_now()), **fields)


class IssuedTokenBody(TokenBody):
    """A new token with its secret. The secret is not shown again."""

    token: Annotated[str, Field(pattern=r"^torana_[A-Za-z0-9_-]{43}$")]


class TokensBody(Page[TokenBody]):
    """A page of tokens."""


class AuditEntryBody(Renamed):
    """An administrative action."""

    id: str
    at: Annotated[Time, ReadFrom("act.at")]
    principal: Annotated[str, ReadFrom("act.principal")]
    """The author: `operator`, `local`, or a token such as `token:tok_0198`."""
    source: Annotated[str, ReadFrom("act.source"), Field(description="An address, or `command line`.")]
    action: Annotated[str, Field(description="The action, such as `token.create`.")]
    target: Annotated[str, Field(description="The id of the object of the action.")]
    detail: dict[str, Any]


class AuditBody(Page[AuditEntryBody]):
    """A page of the audit record."""


class ErasedCounts(Wire):
    """The numbers of erased rows."""

    sessions: Annotated[int, Field(description="Sessions in which no other user spoke.")]
    turns: int
    memories: Annotated[int, Field(description="Memories, including superseded ones.")]
    schedules: int
    keys: Annotated[int, Field(description="Idempotency keys of erased turns.")]
    tokens_revoked: int
    files: Annotated[int, Field(description="Files that the agent stored for the user.")]
    copies: Annotated[int, Field(description="Copies of the whole database in the data directory.")]


class ReceiptBody(Wire):
    """The receipt of an erasure: the erased data, and the data that remains."""

    user: str
    erased_at: Time
    counts: ErasedCounts
    kept: Annotated[list[str], Field(description="Data that remains in the data directory.")]
    out_of_reach: Annotated[list[str], Field(description="Data that the gateway cannot erase.")]

    @classmethod
    def from_receipt(cls, receipt: Receipt) -> Self:
        """Return the body of a receipt."""
        return cls.from_object(
            receipt, counts={**asdict(receipt.counts), "files": receipt.files, "copies": receipt.copies}
        )
