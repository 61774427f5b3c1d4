"""Tokens besides the gateway's own: made, listed, rotated, revoked, and recognised.

A secret is ``torana_`` and the base64url of 32 random bytes, so that a leaked one is found by its prefix. Of
it only the SHA-256 is kept: a slow hash is for passwords, which can be guessed; 256 random bits cannot.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from torana.errors import FieldFault, InvalidField, NotFound
from torana.messages import ID_LIMIT, SCOPES, Principal, Scope, new_id, utc_now
from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.store import tokens as rows
from torana.store.audit import Act
from torana.store.database import Connection, Database
from torana.store.tokens import Token

PREFIX = "torana_"

#: What a token may do unless it is said.
DEFAULT_SCOPES: frozenset[Scope] = frozenset({"message", "read", "memory"})
#: What reaches beyond one user, and therefore goes to no token that is bound to one.
UNBOUND_SCOPES: frozenset[Scope] = frozenset({"admin", "impersonate"})

LABEL_LIMIT = 100
LONGEST_LIFE = timedelta(days=3650)
LONGEST_OVERLAP = timedelta(days=365)
DEFAULT_OVERLAP = timedelta(hours=1)

_SECRET = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that is wanted; ``lifetime`` None is for ever."""

    user: str | None = None
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    label: str = ""
    lifetime: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new token with its secret, which is nowhere else."""

    token: Token
    secret: str


class Tokens:
    """Everybody's tokens. Each change is in the audit record, in the transaction of the change itself."""

    def __init__(self, *, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(self, new: NewToken, *, act: Act) -> Issued:
        """Make a token. Raises ``InvalidField`` for one that cannot be."""
        _check(new)
        now = self._clock()
        token = Token(
            id=new_id("tok"),
            user=new.user,
            label=new.label,
            scopes=new.scopes,
            created_at=now,
            expires_at=None if new.lifetime is None else now + new.lifetime,
        )
        secret = _new_secret()
        await self._database.run(partial(rows.create, token=token, digest=_digest(secret), act=act))
        return Issued(token=token, secret=secret)

    async def listed(self, *, limit: int, after: str | None) -> Page[Token]:
        """The tokens, also those that ended, the newest first."""
        before = read_cursor(after, TIME_KEY)
        found = await self._database.run(partial(rows.listed, before=before, limit=limit + 1))
        return cut(found, limit, lambda token: (token.created_at, token.id), TIME_KEY)

    async def rotate(self, token_id: str, *, overlap: timedelta, act: Act) -> Issued:
        """Make a token that takes the place of another one, which ends after the overlap, or earlier by itself.

        The new one has the user, the scopes and the label of the old one, and lives as long as that one was to.
        Raises ``NotFound``, ``InvalidField``, and ``TokenEnded`` for one that has ended or was rotated before.
        """
        if not timedelta() <= overlap <= LONGEST_OVERLAP:
            raise _invalid("/overlap", f"must be 0 to {LONGEST_OVERLAP.days} days")
        secret = _new_secret()
        work = partial(
            rows.rotate,
            token_id=token_id,
            new_id=new_id("tok"),
            digest=_digest(secret),
            overlap=overlap,
            now=self._clock(),
            act=act,
        )
        return Issued(token=_there(await self._database.run(work), token_id), secret=secret)

    async def revoke(self, token_id: str, *, act: Act) -> Token:
        """End a token at once; from the next request on it is not taken. One that is revoked is left as it is.

        Raises ``NotFound``.
        """
        work = partial(rows.revoke, token_id=token_id, now=self._clock(), act=act)
        return _there(await self._database.run(work), token_id)

    async def authenticate(self, secret: str) -> Principal | None:
        """Who holds a secret; None for one that is not, or not any more, a token's.

        What has not the form of a secret is refused without asking the database. Everything else is asked
        every time, so a token that was revoked, by whichever process, is not taken again. Raises
        ``StoreUnavailable``.
        """
        if _SECRET.fullmatch(secret) is None:
            return None
        return await self._database.run(partial(_holder, digest=_digest(secret), now=self._clock()))

    async def root(self, token_id: str) -> str:
        """The id under which a token's rules and limits stand: of the first, where it was rotated."""
        return await self._database.run(partial(rows.root, token_id=token_id))


def _check(new: NewToken) -> None:
    if new.user is not None and not 1 <= len(new.user) <= ID_LIMIT:
        raise _invalid("/user", f"must have 1 to {ID_LIMIT} characters; leave it out for a token of nobody's")
    if len(new.label) > LABEL_LIMIT:
        raise _invalid("/label", f"must have at most {LABEL_LIMIT} characters")
    for pointer, text in (("/user", new.user or ""), ("/label", new.label)):
        if not _is_text(text):
            raise _invalid(pointer, "must be Unicode without U+0000")
    if not new.scopes:
        raise _invalid("/scopes", f"must name at least one of {', '.join(sorted(SCOPES))}")
    if new.user is not None and (beyond := sorted(new.scopes & UNBOUND_SCOPES)):
        raise _invalid(
            "/scopes",
            f"cannot hold {' or '.join(beyond)}: the token is bound to a user, and that reaches beyond one. "
            "Leave out the user, or the scope",
        )
    if new.lifetime is not None and not timedelta(seconds=1) <= new.lifetime <= LONGEST_LIFE:
        raise _invalid("/expiresIn", f"must be a second to {LONGEST_LIFE.days} days, or nothing for ever")


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _invalid(pointer: str, detail: str) -> InvalidField:
    return InvalidField(f"`{pointer[1:]}` {detail}.", faults=[FieldFault(pointer, detail)])


def _there(token: Token | None, token_id: str) -> Token:
    if token is None:
        raise NotFound(f"there is no token {token_id!r}; `torana token list` names them")
    return token


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _digest(secret: str) -> bytes:
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
        token=token.id if token.replaces is None else rows.root(connection, token.id),
    )
