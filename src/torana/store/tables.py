"""The tables, for every database alike; ``migrations/versions`` builds exactly these (a test compares)."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Dialect

from torana.messages import EVERYONE
from torana.store.fts import TOKENIZER

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)


class UtcTime(sa.types.TypeDecorator[datetime]):
    """An aware time, kept in UTC. SQLite keeps no zone, so it is put back on the way out."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Hand the database the time in UTC."""
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the time back aware."""
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)


def owned(table: sa.Table, owner: str) -> sa.ColumnElement[bool]:
    """The condition for an owner's rows; all of them where it is ``EVERYONE``."""
    return sa.true() if owner == EVERYONE else table.c.owner == owner


#: Key (owner, channel). ``next_seq`` numbers the turns in the order of their acceptance; ``speaker`` is the
#: first user heard and ``shared`` tells that another one has spoken since.
sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("next_seq", sa.Integer, nullable=False),
    sa.Column("speaker", sa.Text),
    sa.Column("shared", sa.Boolean, nullable=False),
    # History before this place is not shown to the model any more.
    sa.Column("fresh_from", sa.Integer, nullable=False, server_default="0"),
    # Nor is that of turns whose seq is below this one: they were accepted before the conversation was begun
    # anew, and ended after.
    sa.Column("fresh_seq", sa.Integer, nullable=False, server_default="0"),
    sa.Column("title", sa.Text),
    # What the model is told of history up to and with the place ``summary_to``.
    sa.Column("summary", sa.Text),
    sa.Column("summary_to", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("updated_at", UtcTime, nullable=False),
    sa.UniqueConstraint("owner", "channel"),
    sa.Index("ix_sessions_recent", "owner", "updated_at"),
)

#: The conditions of the partial indices. A statement that is to use one says the same in the same words:
#: behind bound parameters SQLite does not see that the index fits.
active = sa.text("state IN ('running', 'waiting')")
unfinished = sa.text("state IN ('queued', 'running', 'waiting')")

#: One message and its answer; both the inbox and the transcript.
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("token", sa.Text),
    sa.Column("user", sa.Text),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("reply", sa.Text),
    sa.Column("failure_code", sa.Text),
    sa.Column("failure_detail", sa.Text),
    sa.Column("failure_retry_after", sa.Integer),
    # Names of limits, between spaces.
    sa.Column("failure_policies", sa.Text, nullable=False, server_default=""),
    sa.Column("model", sa.Text),
    sa.Column("input_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("cost_usd", sa.Float, nullable=False),
    sa.Column("on_busy", sa.Text, nullable=False, server_default="queue"),
    sa.Column("merged_into", sa.Text),
    sa.Column("merged_step", sa.Integer),
    # What is held back for its next model call, on which day's account (see ``usage``).
    sa.Column("reserved_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("reserved_microusd", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("reserved_on", sa.Text),
    # The connector account that heard it, the platform's id of the message, and where it is answered (JSON).
    sa.Column("account", sa.Text),
    sa.Column("message", sa.Text),
    sa.Column("place", sa.Text),
    # How many files came with it, so that nobody has to look for those of most turns.
    sa.Column("files", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime),
    sa.UniqueConstraint("session_id", "seq"),
    # Heard again it is the same turn.
    sa.Index("uq_turns_message", "account", "message", unique=True),
    # Invariant 2: the database itself holds that a session has one running turn at most.
    sa.Index("uq_turns_active", "session_id", unique=True, sqlite_where=active),
    sa.Index("ix_turns_unfinished", "session_id", "seq", sqlite_where=unfinished),
    sa.Index("ix_turns_user", "user", "created_at"),
)

#: What the model said and saw, a row per turn: a window of whole turns never parts a call from its result.
history = sa.Table(
    "history",
    metadata,
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    # Without the index every deleted turn is looked for in the whole table.
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), nullable=False, index=True),
    sa.Column("messages", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: The condition of deliveries that are not done with.
undelivered = sa.text("state IN ('preview', 'pending', 'sending')")

#: And of those that are neither sent nor given up.
unsent = sa.text("state NOT IN ('sent', 'dropped')")

#: What is to be said on a platform: a turn's reply, a row per part once it is cut into parts, or a notice of
#: the gateway's own. ``place`` is where (JSON), ``line`` what keeps its order: the account's chat and thread.
deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("line", sa.Text, nullable=False),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id")),
    # The turn's parts count from 0 (its questions from 250,000, what tells others of its end from 500,000),
    # behind the row ``root``; one that is not cut yet holds the whole text.
    sa.Column("root", sa.Integer),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("is_cut", sa.Boolean, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    # How many tries were cut off, so that nobody knows whether it arrived.
    sa.Column("unsure", sa.Integer, nullable=False),
    sa.Column("due_at", UtcTime, nullable=False),
    # The platform's id of it, from its first showing on.
    sa.Column("shown_as", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime),
    sa.UniqueConstraint("turn_id", "part"),
    sa.Index("ix_deliveries_open", "account", "number", sqlite_where=undelivered),
    sa.Index("ix_deliveries_unsent", "account", "state", sqlite_where=unsent),
    sa.Index("ix_deliveries_ended", "ended_at"),
    # A number is never given again: what was being sent when its row went would be taken for another.
    sqlite_autoincrement=True,
)

#: Files that came with a message, in their order, until its turn has completed or was cancelled.
attachments = sa.Table(
    "attachments",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), nullable=False, index=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: Which accounts are told of the ends of all turns: ``turn.completed`` or ``turn.failed``.
subscriptions = sa.Table(
    "subscriptions",
    metadata,
    sa.Column("event", sa.Text, primary_key=True),
    sa.Column("account", sa.Text, primary_key=True),
)

#: Who asked to talk on a platform, by the kind of connector and the platform's id of the sender: of the pairing
#: code only a digest. ``user`` is who they are here.
senders = sa.Table(
    "senders",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("sender", sa.Text, primary_key=True),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("user", sa.Text),
    sa.Column("code", sa.LargeBinary, index=True),
    sa.Column("codes", sa.Integer, nullable=False),
    sa.Column("asked_at", UtcTime, nullable=False),
    sa.Column("decided_at", UtcTime),
)

#: Who listens on a platform's account, by a digest of its credentials: one process at a time.
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("until", UtcTime, nullable=False),
)

#: Callers' names for their messages (Idempotency-Key) and the messages they stand for, both as digests; a key
#: outlives its turn when that is erased.
keys = sa.Table(
    "keys",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    sa.Column("turn_id", sa.Text, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False, index=True),
)

#: The journal of turns that run or failed: what a model answered, and which tools it called.
steps = sa.Table(
    "steps",
    metadata,
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

calls = sa.Table(
    "calls",
    metadata,
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("idempotent", sa.Boolean, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("result", sa.LargeBinary, nullable=False),
)

_live = sa.text("superseded_at IS NULL AND subject <> ''")

#: What is remembered about a user, who is its owner; at most one live row per subject, and '' is no subject.
memories = sa.Table(
    "memories",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("turn_id", sa.Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("superseded_at", UtcTime),
    sa.Column("superseded_by", sa.Text),
    # A vector of 32-bit floats, and the model that made it.
    sa.Column("embedding", sa.LargeBinary),
    sa.Column("embedded_by", sa.Text),
    sa.Index("ix_memories_owner", "owner", "created_at"),
    sa.Index("uq_memories_live", "owner", "subject", unique=True, sqlite_where=_live),
)

#: The words of the memories that stand (FTS5). The owner is a column of the index, so that a search is one
#: owner's alone; positions and lengths are not kept, since the database does not rank.
memory_words = sa.table("memory_words", sa.column("owner"), sa.column("memory"), sa.column("words"))

event.listen(
    memories,
    "after_create",
    sa.DDL(
        "CREATE VIRTUAL TABLE memory_words USING fts5"
        f'(owner, memory, words, detail=column, columnsize=0, tokenize = "{TOKENIZER}")'
    ).execute_if(dialect="sqlite"),
)

#: Tokens besides the gateway's own; of the secret only a digest. ``replaces`` is the one that a rotation ends.
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False, index=True),
    sa.Column("user", sa.Text),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("replaces", sa.Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime),
    sa.Column("revoked_at", UtcTime),
    sa.Column("used_at", UtcTime),
)

#: Every administrative act: who did what to whom, when, from where. Never a text of a user's.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", UtcTime, nullable=False, index=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
)

#: What was spent and is held back, per account (``gateway``, ``user:…``, ``token:…``) and period: a day such
#: as ``2026-11-20`` or, where a limit needs it, a minute such as ``2026-11-20T22:05``, both in UTC.
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("period", sa.Text, primary_key=True),
    sa.Column("messages", sa.Integer, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("microusd", sa.BigInteger, nullable=False),
    sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
    sa.Column("reserved_microusd", sa.BigInteger, nullable=False),
)

#: Turns that were erased or have expired: asked for again, they are gone and not unknown.
tombstones = sa.Table(
    "tombstones",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
)

_open = sa.text("state = 'open'")

#: Calls of tools that wait, or waited, for somebody's yes. ``arguments`` are the model's, ``edited`` those of
#: whoever decided; both are JSON.
approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("arguments", sa.LargeBinary, nullable=False),
    # How many characters of the turn's reply stand before the question.
    sa.Column("said", sa.Integer, nullable=False),
    # The number of the delivery that says the question in a chat, once there is one.
    sa.Column("delivery", sa.Integer),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("edited", sa.LargeBinary),
    sa.Column("reason", sa.Text),
    sa.Column("decided_by", sa.Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.Column("decided_at", UtcTime),
    sa.Index("ix_approvals_open", "expires_at", sqlite_where=_open),
    sa.Index("uq_approvals_id", "id", unique=True),
)

#: What was installed, and what the operator decided about it and about skills that were placed by hand, which
#: have no folder. ``digest`` is that of the files the decision is about, ``granted`` what their scripts may use
#: (JSON); the next folder is a newer version, in quarantine.
skills = sa.Table(
    "skills",
    metadata,
    sa.Column("slug", sa.Text, primary_key=True),
    sa.Column("origin", sa.Text),
    sa.Column("subfolder", sa.Text),
    sa.Column("folder", sa.Text),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("granted", sa.Text),
    sa.Column("installed_at", UtcTime, nullable=False),
    sa.Column("decided_by", sa.Text),
    sa.Column("decided_at", UtcTime),
    sa.Column("next_folder", sa.Text),
    sa.Column("next_digest", sa.Text),
)

_scheduled = sa.text("state = 'active'")

#: What is said or done at a time, once or by a rule: ``due_at`` is the next time, NULL where none comes, and
#: ``try_at`` when it is tried, which is later where it was refused. ``dealt_with`` is the last time that was
#: fired or missed, and ``dealt_at`` when; ``turn_id`` the turn of the last firing. ``made_by`` is a digest of
#: the tool call that made it.
schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False, index=True),
    sa.Column("user", sa.Text, index=True),
    sa.Column("token", sa.Text),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("account", sa.Text),
    sa.Column("place", sa.Text),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("cron", sa.Text),
    sa.Column("timezone", sa.Text, nullable=False),
    sa.Column("missed", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("due_at", UtcTime),
    sa.Column("try_at", UtcTime),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("dealt_with", UtcTime),
    sa.Column("dealt_at", UtcTime),
    sa.Column("turn_id", sa.Text),
    sa.Column("made_by", sa.LargeBinary, unique=True),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Index("ix_schedules_try", "try_at", sqlite_where=_scheduled),
)
