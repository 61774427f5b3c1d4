"""Created tokens: create, list, rotate, revoke and authenticate.

A secret is ``torana_`` and the base64url of 32 random bytes, so that scanners find a leaked one by its prefix.
Only its SHA-256 is stored. A slow hash is not needed: 256 random bits cannot be guessed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from torana.characters import is_storable
from torana.errors import FieldFault, InvalidField, NotFound
from torana.messages import DEFAULT_SCOPES, ID_LIMIT, SCOPES, Principal, Scope, new_id, utc_now
from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.store.engine.database import Connection, Database
from torana.store.rows import tokens as rows
from torana.store.rows.audit import Act
from torana.store.rows.tokens import Token

PREFIX = "torana_"

#: The scopes that reach beyond one user. A token that is bound to a user cannot have them.
UNBOUND_SCOPES: frozenset[Scope] = frozenset({"admin", "impersonate"})

LABEL_LIMIT = 100
LONGEST_LIFE = timedelta(days=3650)
LONGEST_OVERLAP = timedelta(days=365)
DEFAULT_OVERLAP = timedelta(hours=1)

_SECRET = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """The properties of a token to create. ``lifetime`` None means that it does not expire."""

    user: str | None = None
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    label: str = ""
    lifetime: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new token with its secret, which is not stored."""

    token: Token
    secret: str


class Tokens:
    """The tokens of all users. Each change is recorded in the audit record in the same transaction."""

    def __init__(self, *, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(self, new: NewToken, *, act: Act) -> Issued:
        """Create a token. Raises ``InvalidField`` for invalid properties."""
        check_properties(new)
        now = self._clock()
        token = Token(
            id=new_id("tok"),
            user=new.user,
            label=new.label,
            scopes=new.scopes,
            created_at=now,
            expires_at=None if new.lifetime is None else now + new.lifetime,
        )
        secret = new_secret()
        await self._database.run(partial(rows.create, token=token, digest=digest_of(secret), act=act))
        return Issued(token=token, secret=secret)

    async def list_tokens(self, *, limit: int, after: str | None) -> Page[Token]:
        """Return the tokens, including ended ones, the newest first."""
        before = read_cursor(after, TIME_KEY)
        found = await self._database.run(partial(rows.list_tokens, before=before, limit=limit + 1))
        return cut(found, limit, lambda token: (token.created_at, token.id), TIME_KEY)

    async def rotate(self, token_id: str, *, overlap: timedelta, act: Act) -> Issued:
        """Create a token that replaces another; the old token ends after ``overlap`` or at its own expiry.

        The new token has the user, scopes, label and lifetime of the old one. Raises ``NotFound``,
        ``InvalidField``, and ``TokenEnded`` for a token that has ended or was rotated before.
        """
        if not timedelta() <= overlap <= LONGEST_OVERLAP:
            raise _invalid("/overlap", f"must be 0 to {LONGEST_OVERLAP.days} days")
        secret = new_secret()
        work = partial(
            rows.rotate,
            token_id=token_id,
            new_id=new_id("tok"),
            digest=digest_of(secret),
            overlap=overlap,
            now=self._clock(),
            act=act,
        )
        return Issued(token=_require_token(await self._database.run(work), token_id), secret=secret)

    async def revoke(self, token_id: str, *, act: Act) -> Token:
        """End a token at once; the next request with it is refused. Idempotent. Raises ``NotFound``."""
        work = partial(rows.revoke, token_id=token_id, now=self._clock(), act=act)
        return _require_token(await self._database.run(work), token_id)

    async def authenticate(self, secret: str) -> Principal | None:
        """Return the principal of a secret, or None for an unknown, expired or revoked token.

        A text in another format is refused without a query. Any other secret is looked up each time, so a token
        that another process revoked is refused too. Raises ``StoreUnavailable``.
        """
        if _SECRET.fullmatch(secret) is None:
            return None
        return await self._database.run(partial(_holder, digest=digest_of(secret), now=self._clock()))

    async def is_active(self, principal: Principal) -> bool:
        """Return whether the token of a principal is still valid. Raises ``StoreUnavailable``."""
        if principal.token is None:
            return True
        token = await self.token_of(principal)
        return token is not None and token.status(self._clock()) == "active"

    async def token_of(self, principal: Principal) -> Token | None:
        """Return the token of a principal; None for the gateway token. Raises ``StoreUnavailable``."""
        if principal.token_id is None:
            return None
        return await self._database.run(partial(rows.get, token_id=principal.token_id))

    async def root(self, token_id: str) -> str:
        """Return the id for a token's rules and limits: the first id in its chain of rotations."""
        return await self._database.run(partial(rows.root, token_id=token_id))


def check_properties(new: NewToken) -> None:
    """Raise ``InvalidField`` for invalid properties."""
    if new.user is not None and not 1 <= len(new.user) <= ID_LIMIT:
        raise _invalid("/user", (f"must have 1 to {ID_LIMIT} characters; omit it for a token without a user"))
    if len(new.label) > LABEL_LIMIT:
        raise _invalid("/label", f"must have at most {LABEL_LIMIT} characters")
    for pointer, text in (("/user", new.user or ""), ("/label", new.label)):
        if not is_storable(text):
            raise _invalid(pointer, "must be Unicode without U+0000")
    if not new.scopes:
        raise _invalid("/scopes", f"must name at least one of {', '.join(sorted(SCOPES))}")
    if new.user is not None and (beyond := sorted(new.scopes & UNBOUND_SCOPES)):
        raise _invalid(
            "/scopes",
            (
                f"cannot contain {' or '.join(beyond)}: the token is bound to a user, and the scope "
                "covers all users. Omit the user, or the scope"
            ),
        )
    if new.lifetime is not None and not timedelta(seconds=1) <= new.lifetime <= LONGEST_LIFE:
        raise _invalid(
            "/expiresIn",
            (f"must be 1 second to {LONGEST_LIFE.days} days; omit it for a token that does not expire"),
        )


def _invalid(pointer: str, detail: str) -> InvalidField:
    return InvalidField(f"`{pointer[1:]}` {detail}.", faults=[FieldFault(pointer, detail)])


def _require_token(token: Token | None, token_id: str) -> Token:
    if token is None:
        raise NotFound(f"there is no token {token_id!r}; `torana token list` lists all tokens")
    return token


def new_secret(prefix: str = PREFIX) -> str:
    """Return a new secret of 256 random bits."""
    return prefix + secrets.token_urlsafe(32)


def digest_of(secret: str) -> bytes:
    """Return the digest under which a secret is stored."""
    return hashlib.sha256(secret.encode()).digest()


def _holder(connection: Connection, digest: bytes, now: datetime) -> Principal | None:
    token = rows.use(connection, digest, now=now)
    if token is None:
        return None
    return Principal(
        name=f"token:{token.id}",
        owner=token.owner,
        user=token.user,
        scopes=SCOPES if "admin" in token.scopes else token.scopes,
        token=rows.root(connection, token.id) if token.replaces or token.issued_by else token.id,
    )
