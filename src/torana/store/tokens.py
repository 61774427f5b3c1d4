"""Rows of tokens: of a secret only its digest is kept, so no copy of the database lets anybody in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.errors import TokenEnded
from torana.messages import GATEWAY_OWNER, Scope, owner_of
from torana.store.audit import Act, record
from torana.store.tables import tokens

TokenStatus = Literal["active", "expired", "revoked"]

#: How far a clock may be set back behind the time at which a token was made.
_EARLY = timedelta(days=1)

#: How exactly the time of the last use is known; a write for every request would cost each of them a sync.
_USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token, which is everything but its secret."""

    id: str
    #: Whom it is bound to; None is nobody.
    user: str | None
    label: str
    scopes: frozenset[Scope]
    created_at: datetime
    #: From then on it is not taken any more; None is never.
    expires_at: datetime | None
    revoked_at: datetime | None = None
    #: The last use, to the minute.
    used_at: datetime | None = None
    #: The id of the token that it took the place of.
    replaces: str | None = None

    @property
    def owner(self) -> str:
        """Who owns what is made with it."""
        return GATEWAY_OWNER if self.user is None else owner_of(self.user)

    def status(self, now: datetime) -> TokenStatus:
        """Whether it is taken, and if not, why.

        A token with an expiry that was made by a clock that was ahead counts as expired until that time comes:
        otherwise it would live for longer than it was made for.
        """
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is None:
            return "active"
        return "active" if self.created_at - _EARLY <= now < self.expires_at else "expired"


def create(connection: Connection, token: Token, *, digest: bytes, act: Act) -> None:
    """Write down a new token, and that it was made."""
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
    """Put a new token with another secret in an active one's place, which ends after the overlap or before.

    None where there is no such token. Raises ``TokenEnded`` for one that has ended, or has a successor.
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
    seconds = int(overlap.total_seconds())
    record(connection, act, "token.rotate", old.id, user=old.user, replacedBy=new.id, overlapSeconds=seconds)
    return new


def revoke(connection: Connection, token_id: str, *, now: datetime, act: Act) -> Token | None:
    """Let a token be taken no more; None where there is none. One that is revoked is left as it is."""
    token = get(connection, token_id)
    if token is None or token.revoked_at is not None:
        return token
    connection.execute(_CHANGE, {"key": token.id, "revoked_at": now})
    record(connection, act, "token.revoke", token.id, user=token.user)
    return replace(token, revoked_at=now)


def use(connection: Connection, digest: bytes, *, now: datetime) -> Token | None:
    """The token of a secret, if it is active; that it was used is noted."""
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
    """The token of that id."""
    row = connection.execute(sa.select(tokens).where(tokens.c.id == token_id)).mappings().first()
    return None if row is None else _token(row)


def root(connection: Connection, token_id: str) -> str:
    """The id of the token that the rotations behind another one began with; its own where there were none.

    Rules, limits and what was spent go by it, so that a successor is no new beginning.
    """
    return connection.execute(_ROOT, {"id": token_id}).scalar() or token_id


def listed(connection: Connection, *, before: tuple[datetime, str] | None, limit: int) -> list[Token]:
    """The tokens, also those that ended, the newest first; behind a place in that order."""
    query = sa.select(tokens)
    if before is not None:
        at, token_id = before
        query = query.where(
            (tokens.c.created_at < at) | ((tokens.c.created_at == at) & (tokens.c.id < token_id))
        )
    newest_first = query.order_by(tokens.c.created_at.desc(), tokens.c.id.desc()).limit(limit)
    return [_token(row) for row in connection.execute(newest_first).mappings()]


def _insert(connection: Connection, token: Token, digest: bytes) -> None:
    values = {
        "id": token.id,
        "owner": token.owner,
        "user": token.user,
        "label": token.label,
        "digest": digest,
        "scopes": " ".join(sorted(token.scopes)),
        "replaces": token.replaces,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }
    connection.execute(sa.insert(tokens), values)


def _check_replaceable(connection: Connection, token: Token, now: datetime) -> None:
    status = token.status(now)
    if status != "active":
        raise TokenEnded(f"The token is {status}; create a new one.")
    successor = connection.execute(sa.select(tokens.c.id).where(tokens.c.replaces == token.id)).scalar()
    if successor is not None:
        raise TokenEnded(f"The token was rotated already; rotate {successor}, which took its place.")


def _token(row: RowMapping) -> Token:
    values: dict[str, Any] = {
        name: value for name, value in row.items() if name not in ("owner", "digest", "scopes")
    }
    return Token(**values, scopes=cast("frozenset[Scope]", frozenset(row["scopes"].split())))


def _rooted() -> sa.Select[str]:
    ids = sa.select(tokens.c.id, tokens.c.replaces)
    chain = ids.where(tokens.c.id == sa.bindparam("id")).cte("chain", recursive=True)
    chain = chain.union(ids.join(chain, tokens.c.id == chain.c.replaces))
    return sa.select(chain.c.id).where(chain.c.replaces.is_(None))


# Built once, because every request asks: SQLAlchemy's cache then finds their SQL without walking them.
_BY_DIGEST = sa.select(tokens).where(tokens.c.digest == sa.bindparam("digest"))
_ROOT = _rooted()
_CHANGE = sa.update(tokens).where(tokens.c.id == sa.bindparam("key"))
