"""Everything that is kept of a user, deleted in one transaction.

A user's are the turns of their own tokens (the owner is theirs) and those that others sent for them (the user
is theirs, the owner the gateway). Their turns in a session of the gateway's go, and with the last turn the
session; what other speakers said there, or were answered, is theirs and stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import owner_of
from torana.store import audit, deliveries, memory_words, schedules
from torana.store.audit import Act
from torana.store.deletion import delete_turns
from torana.store.senders import of_user
from torana.store.tables import history, memories, senders, sessions, tokens, tombstones, turns
from torana.store.tables import unfinished as not_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many rows went: of each kind, superseded memories and revoked tokens included."""

    sessions: int
    turns: int
    memories: int
    schedules: int
    keys: int
    tokens_revoked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedUser:
    """What was deleted, and the ids of the turns among it."""

    counts: Counts
    turn_ids: Sequence[str]


def unfinished(connection: Connection, user: str) -> list[tuple[str, str]]:
    """The owner and the id of each turn of the user that has not ended, the last of a session first."""
    rows = connection.execute(
        sa.select(turns.c.owner, turns.c.id)
        .where(not_ended, _of(user))
        .order_by(turns.c.session_id, turns.c.seq.desc())
    )
    return [(row.owner, row.id) for row in rows]


def revoke_tokens(connection: Connection, user: str, act: Act) -> int:
    """Let the user's tokens be taken no more, before anything else: nobody can hold up an erasure by sending
    on. Returns how many were revoked; each is an act in the audit record.
    """
    valid = (tokens.c.user == user) & tokens.c.revoked_at.is_(None)
    revoked = sa.update(tokens).where(valid).values(revoked_at=act.at).returning(tokens.c.id)
    ids = connection.execute(revoked).scalars().all()
    for token_id in ids:
        audit.record(connection, act, "token.revoke", token_id, user=user)
    return len(ids)


def erase(connection: Connection, user: str, act: Act, *, tokens_revoked: int) -> ErasedUser | None:
    """Delete everything of a user, and record the act; None where a turn has not ended, and nothing is done.

    Turns leave tombstones, and keys that stood for them lose what they knew of the message; bound tokens lose
    their labels, and how many were revoked before is told. What the gateway itself told anybody in a chat is
    forgotten, for a place there may name the user. What was spent and the audit record stay. Done again it
    finds nothing left.
    """
    if unfinished(connection, user):
        return None
    whole, shared = _sessions(connection, user)
    memory_words.clear(connection, owner_of(user))
    deleted = delete_turns(connection, _of(user), act.at)
    counts = Counts(
        sessions=len(whole),
        turns=len(deleted.turns),
        keys=deleted.keys,
        memories=connection.execute(sa.delete(memories).where(memories.c.owner == owner_of(user))).rowcount,
        schedules=schedules.delete_of(connection, user),
        tokens_revoked=tokens_revoked,
    )
    connection.execute(sa.update(tokens).where(tokens.c.user == user).values(label=""))
    _forget_senders(connection, user)
    deliveries.delete_notices(connection)
    if whole:
        connection.execute(_DELETE_SESSION, [{"key": session_id} for session_id in whole])
    if shared:
        connection.execute(_MEND, [{"key": session_id, "gone": user} for session_id in shared])
    told = asdict(counts)
    told["tokensRevoked"] = told.pop("tokens_revoked")
    audit.record(connection, act, "user.erase", user, **told)
    return ErasedUser(counts=counts, turn_ids=deleted.turns)


def erased_among(connection: Connection, turn_ids: Iterable[str]) -> set[str]:
    """Those of the turns that are no more."""
    remaining = iter(turn_ids)
    erased: set[str] = set()
    while chunk := list(islice(remaining, 500)):
        erased.update(connection.execute(_ERASED, {"ids": chunk}).scalars())
    return erased


def _forget_senders(connection: Connection, user: str) -> None:
    """Of whom the operator turned away stays that, and nothing else."""
    is_denied = senders.c.state == "denied"
    connection.execute(sa.delete(senders).where(of_user(user), ~is_denied))
    blank = {"name": "", "place": "", "account": "", "user": None}
    connection.execute(sa.update(senders).where(of_user(user), is_denied).values(blank))


def _of(user: str) -> sa.ColumnElement[bool]:
    """The condition for a user's turns."""
    own = sa.select(sessions.c.id).where(sessions.c.owner == owner_of(user))
    return (turns.c.user == user) | turns.c.session_id.in_(own)


def _sessions(connection: Connection, user: str) -> tuple[list[str], list[str]]:
    """The sessions that go with the user, and those in which there is more than the user's."""
    spoke = sessions.c.id.in_(sa.select(turns.c.session_id).where(turns.c.user == user))
    others = sa.exists().where(turns.c.session_id == sessions.c.id, turns.c.user.is_distinct_from(user))
    is_own = sessions.c.owner == owner_of(user)
    whole = sa.select(sessions.c.id).where(is_own | (spoke & ~others))
    shared = sa.select(sessions.c.id).where(~is_own, spoke, others)
    return list(connection.execute(whole).scalars()), list(connection.execute(shared).scalars())


_ERASED = sa.select(tombstones.c.turn_id).where(tombstones.c.turn_id.in_(sa.bindparam("ids", expanding=True)))
_DELETE_SESSION = sa.delete(sessions).where(sessions.c.id == sa.bindparam("key"))
_next_place = sa.select(sa.func.coalesce(sa.func.max(history.c.seq), 0) + 1).where(
    history.c.session_id == sessions.c.id
)
_next_speaker = (
    sa.select(turns.c.user)
    .where(turns.c.session_id == sessions.c.id, turns.c.user.is_not(None))
    .order_by(turns.c.seq)
    .limit(1)
)
#: A session that stays forgets whom it has heard, and what was made of it. ``shared`` stays as it is: whoever
#: was there may still read along. Places of history behind the last are given anew, so a mark there moves to
#: the end. A summary that is being made at this moment was made of what is gone: it finds another mark.
_MEND = (
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("key"))
    .values(
        speaker=sa.case(
            (sessions.c.speaker == sa.bindparam("gone"), _next_speaker.scalar_subquery()),
            else_=sessions.c.speaker,
        ),
        fresh_from=sa.case(
            (sessions.c.fresh_from > _next_place.scalar_subquery(), _next_place.scalar_subquery()),
            else_=sessions.c.fresh_from,
        ),
        title=None,
        summary=None,
        summary_to=sa.case((sessions.c.summary_to > 0, 0), else_=sessions.c.summary_to) - 1,
    )
)
