"""Bodies of the identity of a request, and of sign-ins."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field

from torana.api.schemas.base import Id, RequestBody, Time, Wire
from torana.api.schemas.people import Scopes, whole_number
from torana.messages import Principal, Scope
from torana.people.sign_in import LONGEST_SIGN_IN
from torana.store.rows.tokens import Token

_LONGEST = int(LONGEST_SIGN_IN.total_seconds())


class MeBody(Wire):
    """The identity of a request."""

    name: str
    """`operator` for the gateway token, `local` on a gateway without a token, or a token such as
    `token:tok_0198`. The audit record has the same names.
    """
    token_id: Annotated[str | None, Field(description="Null for `operator` and `local`.")]
    label: str | None
    user_id: Annotated[str | None, Field(description="The user that the token is bound to.")]
    scopes: Annotated[list[Scope], Field(description="The scopes; `admin` includes all others.")]
    expires_at: Annotated[Time | None, Field(description="Null for a token that does not expire.")]

    @classmethod
    def from_principal(cls, principal: Principal, token: Token | None) -> Self:
        """Return the body of a principal and its token."""
        return cls(
            name=principal.name,
            token_id=token and token.id,
            label=token and (token.label or None),
            user_id=principal.user,
            scopes=sorted(principal.scopes),
            expires_at=token and token.expires_at,
        )


class SignInCodeRequest(RequestBody):
    """A one-time code to create, and the token of the sign-in. Unknown fields are ignored."""

    scopes: Annotated[list[Scope], Field(min_length=1)] | None = None
    """The scopes of the token, at most those of this request; null for all of these."""
    user: Annotated[Id, Field(min_length=1)] | None = None
    """The user that the token is bound to, by default that of this request. Another user needs the scope
    `admin`.
    """
    expires_in: Annotated[int, Field(ge=1, le=_LONGEST), BeforeValidator(whole_number)] | None = _LONGEST
    """Seconds that the token is valid, at most until the token of this request expires."""


class SignInCodeBody(Wire):
    """A one-time code. It is not shown again."""

    id: str
    code: Annotated[
        str,
        Field(
            description="The bearer token of one `POST /v1/sign-in`. An address may contain it in its fragment "
            "only.",
            pattern=r"^torana_code_[A-Za-z0-9_-]{43}$",
        ),
    ]
    user: str | None
    scopes: Scopes
    expires_at: Annotated[Time, Field(description="The time until which the code is valid.")]


class SignInBody(Wire):
    """The identity that a one-time code signs in as."""

    created_by: str
    """The principal that created the code, as in the audit record."""
    user: Annotated[str | None, Field(description="The user that the sign-in is bound to.")]
    scopes: Scopes
    expires_at: Annotated[Time, Field(description="The time until which the code is valid.")]
