"""Bodies of the identity of a request."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from torana.api.schemas.base import Time, Wire
from torana.messages import Principal, Scope
from torana.store.rows.tokens import Token


class MeBody(Wire):
    """The identity of a request."""

    name: Annotated[
        str,
        Field(
            description="`operator` for the gateway token, `local` on a gateway without a token, or a token "
            "such as `token:tok_0198`. The audit record has the same names."
        ),
    ]
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
