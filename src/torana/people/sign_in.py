"""Sign-in by a one-time code: create codes, and exchange one for a token that expires soon.

A code is ``torana_code_`` and the base64url of 32 random bytes. Only its SHA-256 is stored, as for tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from torana.errors import Conflict, ScopeMissing, Unauthorized, WrongUser
from torana.messages import Principal, Scope, new_id, utc_now
from torana.people.tokens import (
    PREFIX,
    UNBOUND_SCOPES,
    Issued,
    NewToken,
    check_properties,
    digest_of,
    new_secret,
)
from torana.store.engine.database import Connection, Database
from torana.store.rows import tokens as rows
from torana.store.rows.audit import Act
from torana.store.rows.tokens import SignInCode, Token

CODE_PREFIX = f"{PREFIX}code_"
CODE_LIFE = timedelta(seconds=60)
LONGEST_SIGN_IN = timedelta(hours=12)
#: The label of the tokens.
LABEL = "Sign-in"

#: Maximum number of open codes of one principal; a newer code replaces the oldest.
_OPEN = 10
#: Maximum number of sign-ins of which each was created with the token of the one before. Every request follows
#: them back to the first token, whose limits apply.
_IN_A_ROW = 10
_CODE = re.compile(rf"{CODE_PREFIX}[A-Za-z0-9_-]{{43}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCode:
    """The properties of the token that a code creates. None stands for the creator's property."""

    scopes: frozenset[Scope] | None = None
    user: str | None = None
    lifetime: timedelta = LONGEST_SIGN_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCode:
    """A new code with its secret, which is not stored."""

    code: SignInCode
    secret: str


class SignIns:
    """The open codes. Each change is recorded in the audit record in the same transaction."""

    def __init__(self, *, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(self, new: NewCode, creator: Principal, *, act: Act) -> IssuedCode:
        """Create a code for a token with at most the creator's rights.

        Raises ``ScopeMissing``, ``WrongUser``, ``InvalidField`` for invalid properties, and ``Conflict`` for a
        creator that is the last of too many sign-ins in a row.
        """
        _check_user(new, creator)
        user = creator.user if new.user is None else new.user
        scopes = _scopes_of(new, creator, user)
        check_properties(NewToken(user=user, scopes=scopes, lifetime=new.lifetime))
        now, secret = self._clock(), new_secret(CODE_PREFIX)
        code = SignInCode(
            id=new_id("sic"),
            created_by=creator.name,
            issued_by=creator.token_id,
            user=user,
            scopes=scopes,
            lifetime=int(new.lifetime.total_seconds()),
            created_at=now,
            expires_at=now + CODE_LIFE,
        )

        def work(connection: Connection) -> None:
            if creator.token_id and rows.count_sign_ins(connection, creator.token_id) >= _IN_A_ROW:
                raise Conflict(
                    f"{_IN_A_ROW} sign-ins in a row created the token; create the code with an earlier token."
                )
            rows.create_code(connection, code, digest=digest_of(secret), most=_OPEN, act=act)

        await self._database.run(work)
        return IssuedCode(code=code, secret=secret)

    async def authenticate(self, secret: str) -> Principal | None:
        """Return the principal that created an open code, without scopes; None for any other text.

        The code stays open. Raises ``StoreUnavailable``.
        """
        found = await self._find(secret)
        return None if found is None else Principal(name=found.created_by, scopes=frozenset())

    async def get(self, secret: str) -> SignInCode:
        """Return an open code, which stays open. Raises ``Unauthorized``."""
        found = await self._find(secret)
        if found is None:
            raise _unusable_code()
        return found

    async def sign_in(self, secret: str, *, act: Act) -> Issued:
        """Use up a code, and return the token that it creates.

        Raises ``Unauthorized`` if the code is unknown, expired or used, also by a simultaneous call, or if the
        token that created it has ended.
        """
        token = Token(
            id=new_id("tok"),
            user=None,
            label=LABEL,
            scopes=frozenset(),
            created_at=self._clock(),
            expires_at=None,
        )
        token_secret = new_secret()
        work = partial(
            rows.take_code,
            digest=digest_of(secret),
            token=token,
            token_digest=digest_of(token_secret),
            act=act,
        )
        issued = await self._database.run(work)
        if issued is None:
            raise _unusable_code()
        return Issued(token=issued, secret=token_secret)

    async def _find(self, secret: str) -> SignInCode | None:
        if _CODE.fullmatch(secret) is None:
            return None
        return await self._database.run(partial(rows.find_code, digest=digest_of(secret), now=self._clock()))


def _unusable_code() -> Unauthorized:
    return Unauthorized("The code is unknown, has expired, or was used; create a new one.")


def _check_user(new: NewCode, creator: Principal) -> None:
    """Raise an error if the sign-in is for another user, unless the creator is an administrator."""
    if new.user is None or new.user == creator.user or "admin" in creator.scopes:
        return
    if creator.user is not None:
        raise WrongUser("The token is bound to another user; omit `user`.")
    raise ScopeMissing("The token needs the scope `admin` to sign in as a user.")


def _scopes_of(new: NewCode, creator: Principal, user: str | None) -> frozenset[Scope]:
    held = creator.scopes if user is None else creator.scopes - UNBOUND_SCOPES
    if new.scopes is None:
        return held
    if missing := sorted(new.scopes - creator.scopes):
        raise ScopeMissing(f"The token lacks the scope {', '.join(f'`{scope}`' for scope in missing)}.")
    return new.scopes
