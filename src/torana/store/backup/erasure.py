"""Delete all data of a user: the turns in transactions of limited size, the rest with the last turns.

A user's turns are the turns of the user's tokens, which the user owns, and the turns that other tokens sent for
the user, which the gateway owns. A session of the gateway is deleted with its last turn; the turns of other
users in it stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import owner_of
from torana.store.engine.tables import history, memories, senders, sessions, tokens, tombstones, turns
from torana.store.engine.tables import unfinished as not_ended
from torana.store.rows import audit, deliveries, schedules, workspace_files
from torana.store.rows.audit import Act
from torana.store.rows.reports import memory_index, message_index, spending
from torana.store.rows.senders import of_user
from torana.store.rows.session_deletion import Deleted, delete_some, delete_turns
from torana.store.rows.tokens import delete_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of deleted rows by kind, including superseded memories and revoked tokens."""

    sessions: int
    turns: int
    memories: int
    schedules: int
    keys: int
    tokens_revoked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTurns:
    """Deleted turns of a user, and the numbers of sessions and idempotency keys that were deleted with them."""

    turn_ids: Sequence[str]
    sessions: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedUser:
    """The deleted data of a user, and the ids of the deleted turns."""

    counts: Counts
    #: The number of deleted files of the user's workspace.
    files: int
    turn_ids: Sequence[str]


def unfinished_turns(connection: Connection, user: str) -> list[tuple[str, str]]:
    """Return the owner and id of each unfinished turn of the user, the last of a session first."""
    rows = connection.execute(
        sa.select(turns.c.owner, turns.c.id)
        .where(not_ended, _turns_of(user))
        .order_by(turns.c.session_id, turns.c.seq.desc())
    )
    return [(row.owner, row.id) for row in rows]


def revoke_tokens(connection: Connection, user: str, act: Act) -> int:
    """Revoke the user's tokens and return their number. Each is recorded in the audit record.

    This comes before the erasure, so that a client cannot delay it by sending messages.
    """
    delete_codes(connection, user)
    valid = (tokens.c.user == user) & tokens.c.revoked_at.is_(None)
    revoked = sa.update(tokens).where(valid).values(revoked_at=act.at).returning(tokens.c.id)
    ids = connection.execute(revoked).scalars().all()
    for token_id in ids:
        audit.record(connection, act, "token.revoke", token_id, user=user)
    return len(ids)


def erase_some_turns(connection: Connection, user: str, act: Act, *, is_first: bool) -> ErasedTurns | None:
    """Delete as many turns of a user as one transaction may.

    Return None, with nothing changed, if one transaction may delete them all, or if a turn has not ended. The
    first call is recorded.
    """
    if unfinished_turns(connection, user):
        return None
    deleted = delete_some(connection, _turns_of(user), act.at)
    if deleted is None:
        return None
    if is_first:
        audit.record(connection, act, "user.erase", user)
    return _leave_sessions(connection, user, deleted)


def erase(
    connection: Connection, user: str, act: Act, *, earlier: Iterable[ErasedTurns], tokens_revoked: int
) -> ErasedUser | None:
    """Delete all data of a user and record it; return None, with nothing changed, if a turn has not ended.

    Tombstones of the turns remain. Idempotency keys lose the digest of their message, and bound tokens lose
    their labels. Notices of the gateway in chats are deleted, because their place may name the user. Usage and
    the audit record stay. ``earlier`` are the results of ``erase_some_turns``, which are added to the result,
    and ``tokens_revoked`` is only reported. A second call changes nothing more.
    """
    if unfinished_turns(connection, user):
        return None
    memory_index.clear(connection, owner_of(user))
    last = _leave_sessions(connection, user, delete_turns(connection, _turns_of(user), act.at))
    message_index.scrub(connection)
    parts = [*earlier, last]
    turn_ids = [turn_id for part in parts for turn_id in part.turn_ids]
    empty = connection.execute(sa.delete(sessions).where(sessions.c.owner == owner_of(user))).rowcount
    counts = Counts(
        sessions=sum(part.sessions for part in parts) + empty,
        turns=len(turn_ids),
        keys=sum(part.keys for part in parts),
        memories=connection.execute(sa.delete(memories).where(memories.c.owner == owner_of(user))).rowcount,
        schedules=schedules.delete_of(connection, user),
        tokens_revoked=tokens_revoked,
    )
    connection.execute(sa.update(tokens).where(tokens.c.user == user).values(label=""))
    _forget_senders(connection, user)
    spending.forget_places(connection, user)
    deliveries.delete_notices(connection)
    details = asdict(counts)
    details["tokensRevoked"] = details.pop("tokens_revoked")
    audit.record(connection, act, "user.erase", user, **details)
    files = workspace_files.delete_all(connection, workspace_files.owner_key(user))
    return ErasedUser(counts=counts, files=files, turn_ids=turn_ids)


def erased_among(connection: Connection, turn_ids: Iterable[str]) -> set[str]:
    """Return the erased turns among ``turn_ids``."""
    remaining = iter(turn_ids)
    erased: set[str] = set()
    while chunk := list(islice(remaining, 500)):
        erased.update(connection.execute(_ERASED, {"ids": chunk}).scalars())
    return erased


def _forget_senders(connection: Connection, user: str) -> None:
    """Delete the user's senders. A denied sender stays denied, without its other data."""
    is_denied = senders.c.state == "denied"
    connection.execute(sa.delete(senders).where(of_user(user), ~is_denied))
    blank = {"name": "", "place": "", "account": "", "user": None}
    connection.execute(sa.update(senders).where(of_user(user), is_denied).values(blank))


def _turns_of(user: str) -> sa.ColumnElement[bool]:
    own = sa.select(sessions.c.id).where(sessions.c.owner == owner_of(user))
    return (turns.c.user == user) | turns.c.session_id.in_(own)


def _leave_sessions(connection: Connection, user: str, deleted: Deleted) -> ErasedTurns:
    """Delete the sessions of deleted turns that have no more turns, and remove the user from the others."""
    has_turns = sa.exists().where(turns.c.session_id == sessions.c.id)
    of_them = sessions.c.id.in_(deleted.sessions)
    ended = connection.execute(sa.delete(sessions).where(of_them, ~has_turns)).rowcount
    connection.execute(_REMOVE_USER.where(of_them), {"gone": user})
    return ErasedTurns(turn_ids=deleted.turns, sessions=ended, keys=deleted.keys)


_ERASED = sa.select(tombstones.c.turn_id).where(tombstones.c.turn_id.in_(sa.bindparam("ids", expanding=True)))
_next_place = sa.select(sa.func.coalesce(sa.func.max(history.c.seq), 0) + 1).where(
    history.c.session_id == sessions.c.id
)
_next_speaker = (
    sa.select(turns.c.user)
    .where(turns.c.session_id == sessions.c.id, turns.c.user.is_not(None))
    .order_by(turns.c.seq)
    .limit(1)
)
#: Removes the user from the remaining sessions. ``shared`` stays, because other users may still read them. New
#: rows reuse the seq of deleted rows at the end of the history, so ``fresh_from`` is at most the next seq.
#: ``summary_to`` changes, so that an unfinished summary of deleted turns is not stored.
_REMOVE_USER = sa.update(sessions).values(
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
