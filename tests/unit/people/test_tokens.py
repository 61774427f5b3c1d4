"""Tokens over a real database and a clock that the test moves."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import RowMapping
from tests.conftest import START
from tests.standins.clock import Clock

from torana.errors import InvalidField, NotFound, StoreUnavailable, TokenEnded
from torana.messages import GATEWAY_OWNER, SCOPES, Principal
from torana.people.audit import AuditRecord
from torana.people.tokens import NewToken, Tokens
from torana.store.engine import tables
from torana.store.engine.database import Database
from torana.store.rows.audit import Act

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ACT = Act(principal="operator", source="192.0.2.1", at=START)


#: Ways in which a secret may be damaged in transit.
DAMAGED: list[Callable[[str], str]] = [
    lambda secret: "",
    lambda secret: secret[:-1],
    lambda secret: secret + "A",
    lambda secret: secret + "\n",
    lambda secret: " " + secret,
    lambda secret: secret[7:],
    lambda secret: "ghp_" + secret[7:],
    lambda secret: secret.upper(),
    lambda secret: secret.replace("torana_", "TORANA_"),
    lambda secret: "torana_" + "*" * 43,
    lambda secret: "torana_" + "é" * 43,
    lambda secret: "torana_" + "x" * 1_000_000,
    # Well formed, but unknown.
    lambda secret: "torana_" + "x" * 43,
    lambda secret: secret[:-2] + ("AA" if not secret.endswith("AA") else "BA"),
]


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


@pytest.fixture
def tokens(database: Database, clock: Clock) -> Tokens:
    return Tokens(database=database, clock=clock)


async def rows_of(database: Database, table: sa.Table) -> Sequence[RowMapping]:
    return await database.run(lambda connection: connection.execute(sa.select(table)).mappings().all())


async def entries(database: Database) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the audit record, oldest first."""
    page = await AuditRecord(database=database).list_entries(limit=200, after=None)
    assert all(entry.act == ACT for entry in page.items)
    return [(entry.action, entry.target, dict(entry.detail)) for entry in reversed(page.items)]


async def test_token_created_under_a_fast_clock_does_not_live_for_years(tokens: Tokens, clock: Clock):
    clock.now = START + 1_000 * DAY
    issued = await tokens.create(NewToken(lifetime=30 * DAY), act=ACT)
    unending = await tokens.create(NewToken(), act=ACT)
    assert await tokens.authenticate(issued.secret) is not None

    clock.now = START
    assert await tokens.authenticate(issued.secret) is None
    assert await tokens.authenticate(unending.secret) is not None


async def test_token_is_valid_after_the_clock_was_set_back_a_few_hours(tokens: Tokens, clock: Clock):
    issued = await tokens.create(NewToken(lifetime=DAY), act=ACT)
    clock.now -= 5 * HOUR
    assert await tokens.authenticate(issued.secret) is not None


async def test_secret_authenticates_as_its_token(tokens: Tokens):
    issued = await tokens.create(NewToken(user="alice", scopes=frozenset({"message"})), act=ACT)
    assert await tokens.authenticate(issued.secret) == Principal(
        name=f"token:{issued.token.id}",
        owner="user:alice",
        user="alice",
        scopes=frozenset({"message"}),
        token=issued.token.id,
    )


async def test_token_without_user_acts_for_the_gateway(tokens: Tokens):
    issued = await tokens.create(NewToken(), act=ACT)
    holder = await tokens.authenticate(issued.secret)
    assert holder
    assert (holder.owner, holder.user, holder.view) == (GATEWAY_OWNER, None, GATEWAY_OWNER)
    assert holder.scopes == {"message", "read", "memory"}


async def test_admin_grants_every_scope(tokens: Tokens):
    issued = await tokens.create(NewToken(scopes=frozenset({"admin"})), act=ACT)
    holder = await tokens.authenticate(issued.secret)
    assert holder
    assert holder.scopes == SCOPES
    assert issued.token.scopes == {"admin"}


async def test_only_the_digest_of_a_secret_is_stored(tokens: Tokens, database: Database):
    secret = (await tokens.create(NewToken(user="alice", label="phone"), act=ACT)).secret
    assert re.fullmatch(r"torana_[A-Za-z0-9_-]{43}", secret)
    (row,) = await rows_of(database, tables.tokens)
    assert row["digest"] == hashlib.sha256(secret.encode()).digest()
    kept = [
        *row.values(),
        *(value for entry in await rows_of(database, tables.audit) for value in entry.values()),
    ]
    assert all(secret[7:] not in str(value) for value in kept)


async def test_secrets_are_unique(tokens: Tokens):
    assert len({(await tokens.create(NewToken(), act=ACT)).secret for _ in range(20)}) == 20


@pytest.mark.parametrize("change", DAMAGED)
async def test_damaged_secret_is_refused(tokens: Tokens, change: Callable[[str], str]):
    secret = (await tokens.create(NewToken(), act=ACT)).secret
    assert await tokens.authenticate(change(secret)) is None


async def test_malformed_secret_is_refused_without_a_query(tokens: Tokens, database: Database):
    database.close()
    assert await tokens.authenticate("torana_short") is None
    with pytest.raises(StoreUnavailable):
        await tokens.authenticate("torana_" + "x" * 43)


async def test_token_expires_at_its_time(tokens: Tokens, clock: Clock):
    issued = await tokens.create(NewToken(lifetime=30 * DAY), act=ACT)
    assert issued.token.expires_at == START + 30 * DAY
    clock.now = START + 30 * DAY - timedelta(microseconds=1)
    assert await tokens.authenticate(issued.secret)
    clock.now = START + 30 * DAY
    assert await tokens.authenticate(issued.secret) is None
    assert issued.token.status(clock.now) == "expired"


async def test_revoked_token_is_refused_and_revoking_again_changes_nothing(
    tokens: Tokens, database: Database, clock: Clock
):
    issued = await tokens.create(NewToken(user="alice"), act=ACT)
    clock.now += HOUR
    revoked = await tokens.revoke(issued.token.id, act=ACT)
    assert (revoked.revoked_at, revoked.status(clock.now)) == (clock.now, "revoked")
    assert await tokens.authenticate(issued.secret) is None
    clock.now += HOUR
    assert await tokens.revoke(issued.token.id, act=ACT) == revoked
    assert [action for action, _, _ in await entries(database)] == ["token.create", "token.revoke"]


async def test_revocation_by_another_process_applies_at_once(
    tokens: Tokens, open_database: Callable[[], Database], clock: Clock
):
    issued = await tokens.create(NewToken(), act=ACT)
    assert await tokens.authenticate(issued.secret)
    await Tokens(database=open_database(), clock=clock).revoke(issued.token.id, act=ACT)
    assert await tokens.authenticate(issued.secret) is None


async def test_last_use_is_recorded_to_the_minute(tokens: Tokens, clock: Clock):
    issued = await tokens.create(NewToken(), act=ACT)
    uses: list[datetime | None] = [(await tokens.list_tokens(limit=1, after=None)).items[0].used_at]
    for seconds in (10, 59, 60, 200):
        clock.now = START + timedelta(seconds=seconds)
        await tokens.authenticate(issued.secret)
        uses.append((await tokens.list_tokens(limit=1, after=None)).items[0].used_at)
    first, second = START + timedelta(seconds=10), START + timedelta(seconds=200)
    assert uses == [None, first, first, first, second]


async def test_refused_authentication_does_not_record_a_use(tokens: Tokens):
    issued = await tokens.create(NewToken(), act=ACT)
    await tokens.revoke(issued.token.id, act=ACT)
    await tokens.authenticate(issued.secret)
    assert (await tokens.list_tokens(limit=1, after=None)).items[0].used_at is None


async def test_both_tokens_are_valid_during_the_rotation_overlap(tokens: Tokens, clock: Clock):
    old = await tokens.create(NewToken(user="alice", label="phone", lifetime=30 * DAY), act=ACT)
    clock.now += 29 * DAY
    new = await tokens.rotate(old.token.id, overlap=HOUR, act=ACT)
    assert (new.token.user, new.token.scopes, new.token.label) == ("alice", old.token.scopes, "phone")
    assert new.token.replaces == old.token.id
    assert new.token.expires_at == clock.now + 30 * DAY
    assert await tokens.authenticate(old.secret)
    assert await tokens.authenticate(new.secret)
    clock.now += HOUR
    assert await tokens.authenticate(old.secret) is None
    assert await tokens.authenticate(new.secret)


async def test_rotation_without_overlap_ends_the_old_token_at_once(tokens: Tokens):
    old = await tokens.create(NewToken(), act=ACT)
    new = await tokens.rotate(old.token.id, overlap=timedelta(), act=ACT)
    assert await tokens.authenticate(old.secret) is None
    assert await tokens.authenticate(new.secret)
    assert new.token.expires_at is None


async def test_overlap_does_not_extend_the_old_token(tokens: Tokens, clock: Clock):
    old = await tokens.create(NewToken(lifetime=2 * HOUR), act=ACT)
    clock.now += HOUR
    await tokens.rotate(old.token.id, overlap=5 * DAY, act=ACT)
    clock.now += HOUR
    assert await tokens.authenticate(old.secret) is None


async def test_ended_token_cannot_be_rotated(tokens: Tokens, clock: Clock):
    revoked = await tokens.create(NewToken(), act=ACT)
    await tokens.revoke(revoked.token.id, act=ACT)
    expired = await tokens.create(NewToken(lifetime=HOUR), act=ACT)
    clock.now += HOUR
    for token, why in ((revoked, "revoked"), (expired, "expired")):
        with pytest.raises(TokenEnded, match=why):
            await tokens.rotate(token.token.id, overlap=HOUR, act=ACT)
    assert len((await tokens.list_tokens(limit=10, after=None)).items) == 2


async def test_rotated_token_cannot_be_rotated_again_but_its_successor_can(tokens: Tokens):
    first = await tokens.create(NewToken(lifetime=30 * DAY), act=ACT)
    second = await tokens.rotate(first.token.id, overlap=HOUR, act=ACT)
    with pytest.raises(TokenEnded, match=second.token.id):
        await tokens.rotate(first.token.id, overlap=HOUR, act=ACT)
    third = await tokens.rotate(second.token.id, overlap=HOUR, act=ACT)
    assert third.token.expires_at == START + 30 * DAY


async def test_rotated_tokens_share_the_root_of_the_first(tokens: Tokens):
    issued = [await tokens.create(NewToken(), act=ACT)]
    for _ in range(3):
        issued.append(await tokens.rotate(issued[-1].token.id, overlap=HOUR, act=ACT))
    holders = [await tokens.authenticate(one.secret) for one in issued]
    first = issued[0].token.id
    assert [holder and holder.token for holder in holders] == [first] * 4
    assert [holder and holder.name for holder in holders] == [f"token:{one.token.id}" for one in issued]
    assert [await tokens.root(one.token.id) for one in issued] == [first] * 4
    assert await tokens.root("tok_nobody") == "tok_nobody"


async def test_every_change_is_in_the_audit_record(tokens: Tokens, database: Database):
    old = await tokens.create(NewToken(user="alice", lifetime=DAY, label="secret plan"), act=ACT)
    new = await tokens.rotate(old.token.id, overlap=HOUR, act=ACT)
    await tokens.revoke(new.token.id, act=ACT)
    made = {
        "user": "alice",
        "scopes": ["memory", "message", "read"],
        "expiresAt": (START + DAY).isoformat(),
    }
    rotated = {"user": "alice", "replacedBy": new.token.id, "overlapSeconds": 3600}
    assert sorted(await entries(database), key=lambda entry: entry[0]) == [
        ("token.create", old.token.id, made),
        ("token.revoke", new.token.id, {"user": "alice"}),
        ("token.rotate", old.token.id, rotated),
    ]


@pytest.mark.parametrize("name", ["no", "", "tok_' OR 1=1 --", "é" * 100])
async def test_unknown_token_is_not_found(tokens: Tokens, name: str):
    with pytest.raises(NotFound):
        await tokens.revoke(name, act=ACT)
    with pytest.raises(NotFound):
        await tokens.rotate(name, overlap=HOUR, act=ACT)


@pytest.mark.parametrize(
    ("new", "pointer"),
    [
        (NewToken(user=""), "/user"),
        (NewToken(user="x" * 257), "/user"),
        (NewToken(user="a\0b"), "/user"),
        (NewToken(user="\ud800"), "/user"),
        (NewToken(label="x" * 101), "/label"),
        (NewToken(label="\udcff"), "/label"),
        (NewToken(scopes=frozenset()), "/scopes"),
        (NewToken(user="alice", scopes=frozenset({"admin"})), "/scopes"),
        (NewToken(user="alice", scopes=frozenset({"message", "impersonate"})), "/scopes"),
        (NewToken(lifetime=timedelta()), "/expiresIn"),
        (NewToken(lifetime=-DAY), "/expiresIn"),
        (NewToken(lifetime=timedelta(days=3651)), "/expiresIn"),
    ],
)
async def test_invalid_token_is_not_created(tokens: Tokens, database: Database, new: NewToken, pointer: str):
    with pytest.raises(InvalidField) as caught:
        await tokens.create(new, act=ACT)
    assert [fault.pointer for fault in caught.value.faults] == [pointer]
    assert pointer[1:] in caught.value.detail
    assert await rows_of(database, tables.tokens) == []
    assert await entries(database) == []


@pytest.mark.parametrize("overlap", [timedelta(seconds=-1), timedelta(days=366)])
async def test_overlap_out_of_bounds_is_refused(tokens: Tokens, overlap: timedelta):
    issued = await tokens.create(NewToken(), act=ACT)
    with pytest.raises(InvalidField):
        await tokens.rotate(issued.token.id, overlap=overlap, act=ACT)
    assert await tokens.authenticate(issued.secret)


async def test_users_are_distinguished_by_exact_code_points(tokens: Tokens):
    alike = ["Jos\u00e9", "Jose\u0301", "jose", "ＪＯＳＥ", "👩‍👩‍👧", "../..", "'; DROP TABLE tokens; --"]
    holders = [
        await tokens.authenticate((await tokens.create(NewToken(user=user), act=ACT)).secret) for user in alike
    ]
    assert [holder and holder.user for holder in holders] == alike
    assert len({holder and holder.owner for holder in holders}) == len(alike)


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
async def test_pages_cover_the_whole_list_newest_first(tokens: Tokens, clock: Clock, limit: int):
    made: list[str] = []
    for number in range(5):
        clock.now = START + timedelta(seconds=number // 2)  # some at the same moment
        made.append((await tokens.create(NewToken(), act=ACT)).token.id)
    found: list[str] = []
    after: str | None = None
    while True:
        page = await tokens.list_tokens(limit=limit, after=after)
        found += [token.id for token in page.items]
        after = page.next
        if after is None:
            break
    assert sorted(found) == sorted(made)
    times = {token.id: token.created_at for token in (await tokens.list_tokens(limit=9, after=None)).items}
    assert [times[token] for token in found] == sorted(times.values(), reverse=True)
