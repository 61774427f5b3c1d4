"""Sign-in codes over a real database and a clock that the test moves."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import RowMapping
from tests.conftest import START
from tests.standins.clock import Clock

from torana.errors import Conflict, InvalidField, ScopeMissing, Unauthorized, WrongUser
from torana.messages import SCOPES, Principal, Scope
from torana.people.sign_in import NewCode, SignIns
from torana.people.tokens import NewToken, Tokens
from torana.store.engine import tables
from torana.store.engine.database import Database
from torana.store.rows.audit import Act

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
ACT = Act(principal="operator", source="192.0.2.1", at=START)
OPERATOR = Principal(name="operator")
UNKNOWN = "torana_code_" + "x" * 43


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


@pytest.fixture
def sign_ins(database: Database, clock: Clock) -> SignIns:
    return SignIns(database=database, clock=clock)


@pytest.fixture
def tokens(database: Database, clock: Clock) -> Tokens:
    return Tokens(database=database, clock=clock)


async def rows_of(database: Database, table: sa.Table) -> Sequence[RowMapping]:
    return await database.run(lambda connection: connection.execute(sa.select(table)).mappings().all())


async def code(sign_ins: SignIns, new: NewCode | None = None, creator: Principal = OPERATOR) -> str:
    return (await sign_ins.create(new or NewCode(), creator, act=ACT)).secret


async def holder(tokens: Tokens, new: NewToken) -> tuple[str, Principal]:
    """Create a token, and return its id and its principal."""
    issued = await tokens.create(new, act=ACT)
    principal = await tokens.authenticate(issued.secret)
    assert principal is not None
    return issued.token.id, principal


async def signed_in_with(tokens: Tokens, secret: str) -> Principal:
    principal = await tokens.authenticate(secret)
    assert principal is not None
    return principal


async def test_code_creates_one_token_with_its_properties(
    sign_ins: SignIns, tokens: Tokens, database: Database
):
    scopes: frozenset[Scope] = frozenset({"read", "message"})
    secret = await code(sign_ins, NewCode(scopes=scopes, user="alice", lifetime=HOUR))
    assert await sign_ins.authenticate(secret) == Principal(name="operator", scopes=frozenset())

    issued = await sign_ins.sign_in(secret, act=ACT)
    assert (issued.token.user, issued.token.scopes, issued.token.expires_at) == ("alice", scopes, START + HOUR)
    principal = await tokens.authenticate(issued.secret)
    assert principal is not None
    assert (principal.owner, principal.scopes, principal.token) == ("user:alice", scopes, issued.token.id)

    assert await sign_ins.authenticate(secret) is None
    with pytest.raises(Unauthorized):
        await sign_ins.sign_in(secret, act=ACT)
    assert await rows_of(database, tables.sign_in_codes) == []


async def test_only_the_digest_of_a_code_is_stored(sign_ins: SignIns, database: Database):
    secret = await code(sign_ins)
    (row,) = await rows_of(database, tables.sign_in_codes)
    assert row["digest"] == hashlib.sha256(secret.encode()).digest()
    assert secret not in str(dict(row))


async def test_one_of_many_concurrent_sign_ins_succeeds(sign_ins: SignIns, database: Database):
    secret = await code(sign_ins)
    attempts = [sign_ins.sign_in(secret, act=ACT) for _ in range(10)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(one) for one in outcomes if isinstance(one, Exception)] == [Unauthorized] * 9
    assert len(await rows_of(database, tables.tokens)) == 1


async def test_code_works_once_across_a_restart(open_database: Callable[[], Database], clock: Clock):
    first = open_database()
    secrets = [await code(SignIns(database=first, clock=clock)) for _ in range(2)]
    await SignIns(database=first, clock=clock).sign_in(secrets[0], act=ACT)
    first.close()

    sign_ins = SignIns(database=open_database(), clock=clock)
    with pytest.raises(Unauthorized):
        await sign_ins.sign_in(secrets[0], act=ACT)
    assert (await sign_ins.sign_in(secrets[1], act=ACT)).token.scopes == SCOPES


@pytest.mark.parametrize(("after", "is_open"), [(59, True), (60, False), (-59, True), (-61, False)])
async def test_code_is_open_for_60_seconds(sign_ins: SignIns, clock: Clock, after: int, is_open: bool):
    secret = await code(sign_ins)
    clock.now = START + after * SECOND
    assert (await sign_ins.authenticate(secret) is not None) == is_open
    if is_open:
        await sign_ins.sign_in(secret, act=ACT)
    else:
        with pytest.raises(Unauthorized):
            await sign_ins.sign_in(secret, act=ACT)


@pytest.mark.parametrize(
    "text", ["", UNKNOWN, UNKNOWN + "x", UNKNOWN[:-1], "torana_" + "x" * 43, UNKNOWN + "\n"]
)
async def test_other_text_is_no_code(sign_ins: SignIns, text: str):
    await code(sign_ins)
    assert await sign_ins.authenticate(text) is None


async def test_newest_ten_codes_of_a_principal_are_open(sign_ins: SignIns, clock: Clock, database: Database):
    foreign = await code(sign_ins, creator=Principal(name="token:tok_1"))
    secrets: list[str] = []
    for _ in range(12):
        clock.now += SECOND
        secrets.append(await code(sign_ins))
    found = [await sign_ins.authenticate(secret) for secret in secrets]
    assert [one is not None for one in found] == [False] * 2 + [True] * 10
    assert await sign_ins.authenticate(foreign) is not None

    clock.now += HOUR
    await code(sign_ins)
    assert len(await rows_of(database, tables.sign_in_codes)) == 1


async def test_creator_gives_only_its_own_scopes_and_user(sign_ins: SignIns, tokens: Tokens):
    _, unbound = await holder(tokens, NewToken(scopes=frozenset({"read", "message"})))
    _, alice = await holder(tokens, NewToken(scopes=frozenset({"read"}), user="alice"))
    every = await sign_ins.create(NewCode(), unbound, act=ACT)
    own = await sign_ins.create(NewCode(user="alice"), alice, act=ACT)
    assert (every.code.user, every.code.scopes) == (None, {"read", "message"})
    assert (own.code.user, own.code.scopes) == ("alice", {"read"})
    as_bob = await sign_ins.create(NewCode(user="bob"), OPERATOR, act=ACT)
    assert as_bob.code.scopes == SCOPES - {"admin", "impersonate"}

    refused: list[tuple[NewCode, Principal, type[Exception]]] = [
        (NewCode(scopes=frozenset({"admin"})), unbound, ScopeMissing),
        (NewCode(scopes=frozenset({"message", "read"})), alice, ScopeMissing),
        (NewCode(user="alice"), unbound, ScopeMissing),
        (NewCode(user="bob"), alice, WrongUser),
        (NewCode(user="bob", scopes=frozenset({"admin"})), OPERATOR, InvalidField),
        (NewCode(scopes=frozenset()), OPERATOR, InvalidField),
    ]
    for new, creator, error in refused:
        with pytest.raises(error):
            await sign_ins.create(new, creator, act=ACT)


async def test_token_of_a_sign_in_has_the_rules_of_its_creator(sign_ins: SignIns, tokens: Tokens):
    root, creator = await holder(tokens, NewToken())
    issued = await sign_ins.sign_in(await code(sign_ins, creator=creator), act=ACT)
    signed_in = await tokens.authenticate(issued.secret)
    assert signed_in is not None
    assert (signed_in.token, signed_in.token_id) == (root, issued.token.id)
    again = await sign_ins.sign_in(await code(sign_ins, creator=signed_in), act=ACT)
    assert await tokens.root(again.token.id) == root


async def test_ten_sign_ins_in_a_row_create_no_code(sign_ins: SignIns, tokens: Tokens):
    """Every request of a token follows its sign-ins back to the first."""
    _, creator = await holder(tokens, NewToken())
    for _ in range(10):
        issued = await sign_ins.sign_in(await code(sign_ins, creator=creator), act=ACT)
        creator = await signed_in_with(tokens, issued.secret)
    assert creator.token_id is not None
    rotated = await tokens.rotate(creator.token_id, overlap=HOUR, act=ACT)

    for last in (creator, await signed_in_with(tokens, rotated.secret)):
        with pytest.raises(Conflict):
            await code(sign_ins, creator=last)


async def test_sign_in_ends_with_the_token_that_created_it(sign_ins: SignIns, tokens: Tokens, clock: Clock):
    token_id, creator = await holder(tokens, NewToken(lifetime=2 * HOUR))
    first = await sign_ins.sign_in(await code(sign_ins, creator=creator), act=ACT)
    assert first.token.expires_at == START + 2 * HOUR
    signed_in = await tokens.authenticate(first.secret)
    assert signed_in is not None
    second = await sign_ins.sign_in(await code(sign_ins, creator=signed_in), act=ACT)
    unused = await code(sign_ins, creator=creator)

    await tokens.rotate(token_id, overlap=HOUR, act=ACT)
    ends = [token.expires_at for token in (await tokens.list_tokens(limit=9, after=None)).items]
    assert ends.count(START + HOUR) == 3  # the old token, and both sign-ins

    await tokens.revoke(token_id, act=ACT)
    assert [await tokens.authenticate(one.secret) for one in (first, second)] == [None, None]
    with pytest.raises(Unauthorized):
        await sign_ins.sign_in(unused, act=ACT)


async def test_codes_and_sign_ins_are_audited(sign_ins: SignIns, database: Database):
    new = NewCode(user="alice", scopes=frozenset({"read"}))
    issued = await sign_ins.create(new, OPERATOR, act=ACT)
    token = (await sign_ins.sign_in(issued.secret, act=ACT)).token
    entries = await rows_of(database, tables.audit)
    assert [(one["principal"], one["action"], one["target"]) for one in entries] == [
        ("operator", "sign_in_code.create", issued.code.id),
        ("operator", "sign_in", token.id),
    ]
    assert issued.secret not in str([dict(one) for one in entries])


async def test_revocation_of_an_expired_sign_in_is_not_audited(
    sign_ins: SignIns, tokens: Tokens, clock: Clock, database: Database
):
    token_id, creator = await holder(tokens, NewToken())
    for lifetime in (HOUR, 3 * HOUR):
        await sign_ins.sign_in(await code(sign_ins, NewCode(lifetime=lifetime), creator), act=ACT)
    clock.on(hours=2)
    await tokens.revoke(token_id, act=ACT)
    audited = [row for row in await rows_of(database, tables.audit) if row["action"] == "token.revoke"]
    assert len(audited) == 2
    assert all(row["revoked_at"] is not None for row in await rows_of(database, tables.tokens))
