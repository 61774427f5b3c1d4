"""Rows of tokens, and of the codes that create tokens.

Only the digest of a secret is stored, so a copy of the database contains no credentials.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.errors import TokenEnded
from torana.messages import GATEWAY_OWNER, Scope, owner_of
from torana.store.engine.tables import newest_first, sign_in_codes, tokens
from torana.store.rows.audit import Act, record

TokenStatus = Literal["active", "expired", "revoked"]

#: Tolerated amount by which the clock may be set back after a token was created.
_CLOCK_TOLERANCE = timedelta(days=1)

#: Precision of the last use. A more precise time would need a write, with a sync, for every request.
_USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret."""

    id: str
    #: The user that the token is bound to, or None.
    user: str | None
    label: str
    scopes: frozenset[Scope]
    created_at: datetime
    #: None means that it does not expire.
    expires_at: datetime | None
    revoked_at: datetime | None = None
    #: The last use, to the minute.
    used_at: datetime | None = None
    #: The id of the token that it replaced.
    replaces: str | None = None
    #: The id of the token whose sign-in code created it.
    issued_by: str | None = None

    @property
    def owner(self) -> str:
        """Return the owner of the data that is created with the token."""
        return GATEWAY_OWNER if self.user is None else owner_of(self.user)

    def status(self, now: datetime) -> TokenStatus:
        """Return whether the token is active, expired or revoked.

        A token with an expiry whose creation time is in the future counts as expired until then: otherwise a
        clock that was ahead would extend its life.
        """
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is None:
            return "active"
        return "active" if self.created_at - _CLOCK_TOLERANCE <= now < self.expires_at else "expired"


def create(connection: Connection, token: Token, *, digest: bytes, act: Act) -> None:
    """Store a new token and record the action."""
    _insert(connection, token, digest)
    record(
        connection,
        act,
        "token.create",
        token.id,
        user=token.user,
        scopes=sorted(token.scopes),
        expiresAt=token.expires_at and token.expires_at.isoformat(),
    )


def rotate(
    connection: Connection,
    token_id: str,
    *,
    new_id: str,
    digest: bytes,
    overlap: timedelta,
    now: datetime,
    act: Act,
) -> Token | None:
    """Replace an active token with a new one; the old one ends after ``overlap`` or earlier.

    Returns None if there is no such token. Raises ``TokenEnded`` if it has ended or was already rotated.
    """
    old = get(connection, token_id)
    if old is None:
        return None
    _check_replaceable(connection, old, now)
    expires_at = old.expires_at and now + (old.expires_at - old.created_at)
    new = replace(old, id=new_id, created_at=now, expires_at=expires_at, used_at=None, replaces=old.id)
    _insert(connection, new, digest)
    end = min(now + overlap, old.expires_at or now + overlap)
    connection.execute(_CHANGE, {"key": old.id, "expires_at": end})
    connection.execute(_SHORTEN_ISSUED, {"key": old.id, "end": end})
    seconds = int(overlap.total_seconds())
    record(connection, act, "token.rotate", old.id, user=old.user, replacedBy=new.id, overlapSeconds=seconds)
    return new


def revoke(connection: Connection, token_id: str, *, now: datetime, act: Act) -> Token | None:
    """Revoke a token and the tokens of its sign-in codes; return the token, None if there is none. Idempotent.

    The revocation of an expired sign-in is not recorded.
    """
    token = get(connection, token_id)
    if token is None or token.revoked_at is not None:
        return token
    connection.execute(_CHANGE, {"key": token.id, "revoked_at": now})
    issued = connection.execute(_REVOKE_ISSUED, {"key": token.id, "now": now}).all()
    for revoked in (token.id, *(row.id for row in issued if row.expires_at > now)):
        record(connection, act, "token.revoke", revoked, user=token.user)
    return replace(token, revoked_at=now)


def use(connection: Connection, digest: bytes, *, now: datetime) -> Token | None:
    """Return the active token of a secret, and store the time of use."""
    row = connection.execute(_BY_DIGEST, {"digest": digest}).mappings().first()
    if row is None:
        return None
    token = _token(row)
    if token.status(now) != "active":
        return None
    if token.used_at is None or abs(now - token.used_at) >= _USE_NOTED_EVERY:
        connection.execute(_CHANGE, {"key": token.id, "used_at": now})
    return token


def get(connection: Connection, token_id: str) -> Token | None:
    row = connection.execute(sa.select(tokens).where(tokens.c.id == token_id)).mappings().first()
    return None if row is None else _token(row)


def root(connection: Connection, token_id: str) -> str:
    """Return the id of the first token in the chain of rotations and sign-ins.

    Rules, limits and usage refer to this id, so that neither a rotation nor a sign-in resets them.
    """
    return connection.execute(_ROOT, {"id": token_id}).scalar() or token_id


def list_tokens(connection: Connection, *, before: tuple[datetime, str] | None, limit: int) -> list[Token]:
    """Return the tokens older than ``before`` (a time and an id), including ended ones, newest first."""
    page = newest_first(sa.select(tokens), tokens.c.created_at, before=before, limit=limit)
    return [_token(row) for row in connection.execute(page).mappings()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInCode:
    """A one-time code without its secret, and the properties of the token that it creates."""

    id: str
    #: The principal that created it, and its token.
    created_by: str
    issued_by: str | None
    user: str | None
    scopes: frozenset[Scope]
    #: Seconds that the token is valid.
    lifetime: int
    created_at: datetime
    expires_at: datetime


def create_code(connection: Connection, code: SignInCode, *, digest: bytes, most: int, act: Act) -> None:
    """Store a code and record the action; delete expired codes, and the creator's oldest above ``most``."""
    connection.execute(sa.delete(sign_in_codes).where(sign_in_codes.c.expires_at <= code.created_at))
    connection.execute(sa.insert(sign_in_codes), _values(code) | {"digest": digest})
    own = sa.select(sign_in_codes.c.id).where(sign_in_codes.c.created_by == code.created_by)
    newest = own.order_by(sign_in_codes.c.created_at.desc(), sign_in_codes.c.id.desc())
    oldest = newest.offset(most)
    connection.execute(sa.delete(sign_in_codes).where(sign_in_codes.c.id.in_(oldest)))
    record(connection, act, "sign_in_code.create", code.id, user=code.user, scopes=sorted(code.scopes))


def count_sign_ins(connection: Connection, token_id: str) -> int:
    """Return the number of sign-ins in a row that led to the token: 0 for one that no code created."""
    return connection.execute(_SIGN_INS, {"id": token_id}).scalar_one()


def find_code(connection: Connection, digest: bytes, *, now: datetime) -> SignInCode | None:
    """Return the open code with a digest; the code stays open."""
    row = connection.execute(_CODE, {"digest": digest}).mappings().first()
    return None if row is None else _open_code(row, now)


def take_code(
    connection: Connection, digest: bytes, *, token: Token, token_digest: bytes, act: Act
) -> Token | None:
    """Delete an open code, store the token that it creates, and return the token.

    ``token`` has the new id, label and time; it ends when the token that created the code does. Returns None if
    there is no such code, or if that token has ended. Of two calls with one code, one returns a token.
    """
    now = token.created_at
    row = connection.execute(_TAKE_CODE, {"digest": digest}).mappings().first()
    code = None if row is None else _open_code(row, now)
    if code is None:
        return None
    expires_at = now + timedelta(seconds=code.lifetime)
    if code.issued_by is not None:
        issuer = get(connection, code.issued_by)
        if issuer is None or issuer.status(now) != "active":
            return None
        expires_at = min(expires_at, issuer.expires_at or expires_at)
    issued = replace(token, user=code.user, scopes=code.scopes, expires_at=expires_at, issued_by=code.issued_by)
    _insert(connection, issued, token_digest)
    record(
        connection,
        act,
        "sign_in",
        issued.id,
        code=code.id,
        user=issued.user,
        scopes=sorted(issued.scopes),
        expiresAt=expires_at.isoformat(),
    )
    return issued


def delete_codes(connection: Connection, user: str) -> None:
    """Delete the codes that are bound to a user."""
    connection.execute(sa.delete(sign_in_codes).where(sign_in_codes.c.user == user))


def _open_code(row: RowMapping, now: datetime) -> SignInCode | None:
    """Return the code of a row, or None if it has expired.

    A code that was created in the future counts as expired: otherwise a clock that was ahead would extend its
    life.
    """
    values = {name: value for name, value in row.items() if name not in ("digest", "scopes")}
    code = SignInCode(**values, scopes=_scopes(row))
    is_open = code.created_at - (code.expires_at - code.created_at) <= now < code.expires_at
    return code if is_open else None


def _insert(connection: Connection, token: Token, digest: bytes) -> None:
    connection.execute(sa.insert(tokens), _values(token) | {"owner": token.owner, "digest": digest})


def _values(item: Token | SignInCode) -> dict[str, Any]:
    return asdict(item) | {"scopes": " ".join(sorted(item.scopes))}


def _check_replaceable(connection: Connection, token: Token, now: datetime) -> None:
    status = token.status(now)
    if status != "active":
        raise TokenEnded(f"The token is {status}; create a new one.")
    successor = connection.execute(sa.select(tokens.c.id).where(tokens.c.replaces == token.id)).scalar()
    if successor is not None:
        raise TokenEnded(f"The token was already rotated; rotate its successor {successor}.")


def _token(row: RowMapping) -> Token:
    values: dict[str, Any] = {
        name: value for name, value in row.items() if name not in ("owner", "digest", "scopes")
    }
    return Token(**values, scopes=_scopes(row))


def _scopes(row: RowMapping) -> frozenset[Scope]:
    return cast("frozenset[Scope]", frozenset(row["scopes"].split()))


def _chain_query() -> sa.CTE:
    """Return the query for a token and the tokens before it, which it replaced or whose codes created it."""
    before = sa.func.coalesce(tokens.c.replaces, tokens.c.issued_by).label("before")
    ids = sa.select(tokens.c.id, before, tokens.c.issued_by)
    chain = ids.where(tokens.c.id == sa.bindparam("id")).cte("chain", recursive=True)
    return chain.union(ids.join(chain, tokens.c.id == chain.c.before))


def _root_token_query() -> sa.Select[str]:
    chain = _chain_query()
    return sa.select(chain.c.id).where(chain.c.before.is_(None))


def _sign_ins_query() -> sa.Select[int]:
    chain = _chain_query()
    # A rotation copies the creator of the token that it replaces.
    return sa.select(sa.func.count()).select_from(chain).where(chain.c.issued_by == chain.c.before)


def _issued_tokens_query() -> sa.Select[str]:
    """Return the query for the tokens that the sign-in codes of a token created, directly or through others."""
    issued = sa.select(tokens.c.id).where(tokens.c.issued_by == sa.bindparam("key"))
    chain = issued.cte("issued", recursive=True)
    chain = chain.union(sa.select(tokens.c.id).join(chain, tokens.c.issued_by == chain.c.id))
    return sa.select(chain.c.id)


# Built once, because every request uses them: SQLAlchemy then finds the compiled SQL faster.
_BY_DIGEST = sa.select(tokens).where(tokens.c.digest == sa.bindparam("digest"))
_ROOT = _root_token_query()
_SIGN_INS = _sign_ins_query()
_CHANGE = sa.update(tokens).where(tokens.c.id == sa.bindparam("key"))
_ISSUED = _issued_tokens_query()
_SHORTEN_ISSUED = (
    sa.update(tokens)
    .where(tokens.c.id.in_(_ISSUED), tokens.c.expires_at > sa.bindparam("end"))
    .values(expires_at=sa.bindparam("end"))
)
_REVOKE_ISSUED = (
    sa.update(tokens)
    .where(tokens.c.id.in_(_ISSUED), tokens.c.revoked_at.is_(None))
    .values(revoked_at=sa.bindparam("now"))
    .returning(tokens.c.id, tokens.c.expires_at)
)
_CODE = sa.select(sign_in_codes).where(sign_in_codes.c.digest == sa.bindparam("digest"))
_TAKE_CODE = (
    sa.delete(sign_in_codes).where(sign_in_codes.c.digest == sa.bindparam("digest")).returning(sign_in_codes)
)
