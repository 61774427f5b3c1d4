"""The tables; ``migrations/versions`` builds exactly these (a test compares them)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from torana.messages import EVERYONE
from torana.store.engine.text_index import create_index

Query: TypeAlias = sa.Select[*tuple[Any, ...]]

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

#: Types of texts and whole numbers. Without a collation, PostgreSQL sorts texts by the language of the
#: database. Its INTEGER has only 32 bits.
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Integer = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


class UtcTime(sa.types.TypeDecorator[datetime]):
    """An aware time, stored in UTC. SQLite returns no time zone, and PostgreSQL that of the session."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert the time to UTC."""
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC."""
        return value and (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC))


def owned_by(table: sa.Table, owner: str) -> sa.ColumnElement[bool]:
    """Return the condition for an owner's rows, or for all rows if the owner is ``EVERYONE``."""
    return sa.true() if owner == EVERYONE else table.c.owner == owner


def equal_to(wanted: Mapping[sa.Column[Any], object]) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that the columns have these values; None matches every value."""
    return [column == value for column, value in wanted.items() if value is not None]


def newest_first(
    query: Query, time: sa.Column[Any], *, before: tuple[datetime, str] | None, limit: int | None
) -> Query:
    """Return the query for the newest rows by a time and their id, older than ``before``."""
    row_id = time.table.c.id
    if before is not None:
        query = query.where(sa.tuple_(time, row_id) < before)
    return query.order_by(time.desc(), row_id.desc()).limit(limit)


#: Unique by owner and channel. ``next_seq`` numbers the turns in the order of acceptance. ``speaker`` is the
#: first user, and ``shared`` is true if other users have sent messages since.
sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("channel", Text, nullable=False),
    sa.Column("next_seq", Integer, nullable=False),
    sa.Column("speaker", Text),
    sa.Column("shared", sa.Boolean, nullable=False),
    # After a reset, the model sees no history row with a smaller seq.
    sa.Column("fresh_from", Integer, nullable=False, server_default="0"),
    # The model sees no turn with a smaller seq: a turn that was accepted before a reset may end after it.
    sa.Column("fresh_seq", Integer, nullable=False, server_default="0"),
    sa.Column("title", Text),
    # The time at which the user archived the session. The next message sets it to NULL.
    sa.Column("archived_at", UtcTime),
    # The summary of the history rows up to and including the seq ``summary_to``.
    sa.Column("summary", Text),
    sa.Column("summary_to", Integer, nullable=False, server_default="0"),
    # The names of the tools that the session has opened, in order, separated by spaces.
    sa.Column("opened_tools", Text, nullable=False, server_default=""),
    # Input and output tokens of all summaries.
    sa.Column("summary_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("updated_at", UtcTime, nullable=False),
    sa.UniqueConstraint("owner", "channel"),
    sa.Index("ix_sessions_recent", "owner", "updated_at"),
)

#: Conditions of the partial indices, also in PostgreSQL. A query must repeat the condition literally: with
#: bound parameters SQLite does not use the index.
active = sa.text("state IN ('running', 'waiting')")
unfinished = sa.text("state IN ('queued', 'running', 'waiting')")
unindexed = sa.text("words_row IS NULL AND ended_at IS NOT NULL")

#: One message and its answer.
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("session_id", Text, sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("channel", Text, nullable=False),
    sa.Column("seq", Integer, nullable=False),
    sa.Column("principal", Text, nullable=False),
    sa.Column("token", Text),
    sa.Column("user", Text),
    sa.Column("content", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("crashes", Integer, nullable=False, server_default="0"),
    sa.Column("reply", Text),
    sa.Column("failure_code", Text),
    sa.Column("failure_detail", Text),
    sa.Column("failure_retry_after", Integer),
    # Names of limits, separated by spaces.
    sa.Column("failure_policies", Text, nullable=False, server_default=""),
    sa.Column("model", Text),
    sa.Column("input_tokens", Integer, nullable=False),
    sa.Column("output_tokens", Integer, nullable=False),
    sa.Column("cost_usd", sa.Float, nullable=False),
    # Estimated parts of the input tokens.
    sa.Column("instruction_tokens", Integer, nullable=False, server_default="0"),
    sa.Column("tool_tokens", Integer, nullable=False, server_default="0"),
    sa.Column("history_tokens", Integer, nullable=False, server_default="0"),
    sa.Column("on_busy", Text, nullable=False, server_default="queue"),
    sa.Column("merged_into", Text),
    sa.Column("merged_step", Integer),
    # Reserved for the next model request, in the usage row of that period (see ``usage``).
    sa.Column("reserved_tokens", Integer, nullable=False, server_default="0"),
    sa.Column("reserved_microusd", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("reserved_on", Text),
    # Number of model requests that were sent and are not settled.
    sa.Column("open_requests", Integer, nullable=False, server_default="0"),
    # The connector's account, the platform's message id, and the address of the reply (JSON).
    sa.Column("account", Text),
    sa.Column("message", Text),
    sa.Column("place", Text),
    # Number of files, so that most turns need no query for them.
    sa.Column("files", Integer, nullable=False, server_default="0"),
    # The row of ``message_words``; NULL for a turn that is not indexed yet.
    sa.Column("words_row", sa.BigInteger),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime),
    # The replica that accepted or claimed the turn; NULL in SQLite.
    sa.Column("replica", Text),
    # A running turn is to be cancelled by the replica that runs it.
    sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.UniqueConstraint("session_id", "seq"),
    # A repeated platform message is the same turn.
    sa.Index("uq_turns_message", "account", "message", unique=True),
    # Invariant 2: a session has at most one running turn.
    sa.Index("uq_turns_active", "session_id", unique=True, sqlite_where=active),
    sa.Index("ix_turns_unfinished", "session_id", "seq", sqlite_where=unfinished),
    sa.Index("ix_turns_user", "user", "created_at"),
    sa.Index("ix_turns_owner", "owner", "created_at", "id"),
    sa.Index("ix_turns_created", "created_at", "id"),
    sa.Index("ix_turns_unindexed", "owner", "created_at", sqlite_where=unindexed),
    sa.Index("uq_turns_words", "words_row", unique=True, sqlite_where=sa.text("words_row IS NOT NULL")),
)

#: The words of the messages and replies of ended turns, as in ``memory_words``. They are added when a
#: search needs them, so that a turn's end does not wait for them.
message_words = sa.table(
    "message_words", sa.column("rowid"), sa.column("owner"), sa.column("session"), sa.column("words")
)

create_index(turns, "message_words", "owner", "session")

#: The times of a turn's queueing, model requests and tool calls.
timings = sa.Table(
    "timings",
    metadata,
    sa.Column("turn_id", Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("attempt", Integer, primary_key=True),
    sa.Column("number", Integer, primary_key=True),
    sa.Column("kind", Text, nullable=False),
    sa.Column("step", Integer),
    # The name of the model or of the tool, and the id of the call.
    sa.Column("name", Text),
    sa.Column("call_id", Text),
    sa.Column("state", Text, nullable=False),
    sa.Column("input_tokens", sa.BigInteger),
    sa.Column("output_tokens", sa.BigInteger),
    sa.Column("microusd", sa.BigInteger),
    sa.Column("started_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime),
)

#: The model's messages, one row per turn, so that a window never separates a call from its result.
history = sa.Table(
    "history",
    metadata,
    sa.Column("session_id", Text, sa.ForeignKey("sessions.id"), primary_key=True),
    sa.Column("seq", Integer, primary_key=True),
    sa.Column("owner", Text, nullable=False),
    # Without this index, deleting a turn scans the table.
    sa.Column("turn_id", Text, sa.ForeignKey("turns.id"), nullable=False, index=True),
    sa.Column("messages", Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: The condition of unfinished deliveries.
undelivered = sa.text("state IN ('preview', 'pending', 'sending')")

#: The condition of deliveries that are neither sent nor dropped.
unsent = sa.text("state NOT IN ('sent', 'dropped')")

#: Texts to send to a platform: a row for each part of a reply, or a notice. ``place`` is the address (JSON);
#: ``line`` is the account's chat and thread, in which the order is preserved.
deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("number", Integer, primary_key=True),
    sa.Column("id", Text, nullable=False, unique=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("account", Text, nullable=False),
    sa.Column("line", Text, nullable=False),
    sa.Column("place", Text, nullable=False),
    sa.Column("turn_id", Text, sa.ForeignKey("turns.id")),
    # ``part`` counts from 0 for parts of a reply, from 250,000 for approval questions, and from 500,000 for
    # notices to subscribed accounts that the turn has ended. ``root`` is the row of the first part. If
    # ``is_cut`` is false, the row contains the whole text, or the rest after earlier parts.
    sa.Column("root", Integer),
    sa.Column("part", Integer, nullable=False),
    sa.Column("is_cut", sa.Boolean, nullable=False),
    sa.Column("text", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("tries", Integer, nullable=False),
    # Number of interrupted attempts, whose outcome is unknown.
    sa.Column("unsure", Integer, nullable=False),
    sa.Column("due_at", UtcTime, nullable=False),
    # The platform's message id, once it is shown.
    sa.Column("shown_as", Text),
    sa.Column("reason", Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime),
    sa.UniqueConstraint("turn_id", "part"),
    sa.Index("ix_deliveries_open", "account", "number", sqlite_where=undelivered),
    sa.Index("ix_deliveries_unsent", "account", "state", sqlite_where=unsent),
    sa.Index("ix_deliveries_ended", "ended_at"),
    # Numbers are never reused: a delivery in progress would be confused with another.
    sqlite_autoincrement=True,
)

#: Files of a message, in order, until its turn has completed or was cancelled.
attachments = sa.Table(
    "attachments",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("turn_id", Text, sa.ForeignKey("turns.id"), nullable=False, index=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("number", Integer, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("media_type", Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: Accounts that are notified of the ends of all turns: ``turn.completed`` or ``turn.failed``.
subscriptions = sa.Table(
    "subscriptions",
    metadata,
    sa.Column("event", Text, primary_key=True),
    sa.Column("account", Text, primary_key=True),
)

#: People who asked for access on a platform, by connector kind and platform id; ``code`` is a digest of the
#: pairing code, and ``user`` is the approved user.
senders = sa.Table(
    "senders",
    metadata,
    sa.Column("kind", Text, primary_key=True),
    sa.Column("sender", Text, primary_key=True),
    sa.Column("account", Text, nullable=False),
    sa.Column("place", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("user", Text),
    sa.Column("code", sa.LargeBinary, index=True),
    sa.Column("codes", Integer, nullable=False),
    sa.Column("asked_at", UtcTime, nullable=False),
    sa.Column("decided_at", UtcTime),
)

#: The process that listens on an account; ``account`` is a digest of the account's credentials.
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("account", Text, primary_key=True),
    sa.Column("holder", Text, nullable=False),
    sa.Column("until", UtcTime, nullable=False),
)

#: Idempotency keys and the messages that used them, both as digests; a key outlives its erased turn.
keys = sa.Table(
    "keys",
    metadata,
    sa.Column("owner", Text, primary_key=True),
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    sa.Column("turn_id", Text, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False, index=True),
)

#: The journal of running and failed turns: model responses and tool calls.
steps = sa.Table(
    "steps",
    metadata,
    sa.Column("turn_id", Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("number", Integer, primary_key=True),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("text", sa.LargeBinary),  # of the responses; NULL if an older version wrote the row
)

calls = sa.Table(
    "calls",
    metadata,
    sa.Column("turn_id", Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("step", Integer, primary_key=True),
    sa.Column("id", Text, primary_key=True),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("tool", Text, nullable=False),
    sa.Column("idempotent", sa.Boolean, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("result", sa.LargeBinary, nullable=False),
)

_live = sa.text("superseded_at IS NULL AND subject <> ''")

#: Memories of a user, who is the owner; at most one live row per subject, and '' means no subject.
memories = sa.Table(
    "memories",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("subject", Text, nullable=False),
    sa.Column("text", Text, nullable=False),
    sa.Column("turn_id", Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("superseded_at", UtcTime),
    sa.Column("superseded_by", Text),
    # A vector of 32-bit floats, and the name of the model that computed it.
    sa.Column("embedding", sa.LargeBinary),
    sa.Column("embedded_by", Text),
    sa.Index("ix_memories_owner", "owner", "created_at"),
    sa.Index("uq_memories_live", "owner", "subject", unique=True, sqlite_where=_live),
)

#: The words of the live memories (see ``text_index``). The owner is indexed, so that a search covers one owner
#: only. Positions and lengths are not stored because the database does not rank.
memory_words = sa.table(
    "memory_words", sa.column("rowid"), sa.column("owner"), sa.column("memory"), sa.column("words")
)

create_index(memories, "memory_words", "owner", "memory")

#: Created tokens; ``digest`` is that of the secret. ``replaces`` is the old token of a rotation. ``issued_by``
#: is the token that created the sign-in code for this token; this token ends when that one ends.
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False, index=True),
    sa.Column("user", Text),
    sa.Column("label", Text, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("scopes", Text, nullable=False),
    sa.Column("replaces", Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime),
    sa.Column("revoked_at", UtcTime),
    sa.Column("used_at", UtcTime),
    sa.Column("issued_by", Text),
)

#: Open one-time codes, each of which creates a token with these properties; ``digest`` is that of the code.
#: ``created_by`` is a principal, ``issued_by`` its token, ``lifetime`` that of the new token in seconds.
sign_in_codes = sa.Table(
    "sign_in_codes",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("created_by", Text, nullable=False),
    sa.Column("issued_by", Text),
    sa.Column("user", Text),
    sa.Column("scopes", Text, nullable=False),
    sa.Column("lifetime", Integer, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
)

#: Administrative actions: principal, object, time and source. Never contains users' texts.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("at", UtcTime, nullable=False, index=True),
    sa.Column("principal", Text, nullable=False),
    sa.Column("source", Text, nullable=False),
    sa.Column("action", Text, nullable=False),
    sa.Column("target", Text, nullable=False),
    sa.Column("detail", Text, nullable=False),
)

#: Usage and reservations per account (``gateway``, ``user:…``, ``token:…``) and period in UTC: a day such as
#: ``2026-11-20`` or, if a limit needs it, a minute such as ``2026-11-20T22:05``.
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("account", Text, primary_key=True),
    sa.Column("period", Text, primary_key=True),
    sa.Column("messages", Integer, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("microusd", sa.BigInteger, nullable=False),
    sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
    sa.Column("reserved_microusd", sa.BigInteger, nullable=False),
    # Estimated parts of the input tokens, and the tokens of summaries.
    sa.Column("instruction_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("tool_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("history_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("summary_tokens", sa.BigInteger, nullable=False, server_default="0"),
)

#: The usage of a day for each combination of its causes; '' is a missing cause. Each charge to the account
#: ``gateway`` is also added here, so the sums of a day are equal in both tables.
spending = sa.Table(
    "spending",
    metadata,
    sa.Column("day", Text, primary_key=True),
    sa.Column("model", Text, primary_key=True),
    sa.Column("user", Text, primary_key=True),
    sa.Column("token", Text, primary_key=True),
    sa.Column("channel", Text, primary_key=True),
    sa.Column("schedule", Text, primary_key=True),
    sa.Column("messages", Integer, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("microusd", sa.BigInteger, nullable=False),
    sa.Index("ix_spending_user", "user"),
)

#: Erased and expired turns, so that a request for them is answered with 410 and not 404.
tombstones = sa.Table(
    "tombstones",
    metadata,
    sa.Column("turn_id", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
)

#: Tool calls with their approval. ``arguments`` are the model's, ``edited`` the approver's; both are JSON.
approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", Text, nullable=False),
    sa.Column("turn_id", Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("step", Integer, primary_key=True),
    sa.Column("call_id", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("tool", Text, nullable=False),
    sa.Column("arguments", sa.LargeBinary, nullable=False),
    # Length of the turn's reply before the question.
    sa.Column("said", Integer, nullable=False),
    # The number of the delivery with the question.
    sa.Column("delivery", Integer),
    sa.Column("state", Text, nullable=False),
    sa.Column("edited", sa.LargeBinary),
    sa.Column("reason", Text),
    sa.Column("decided_by", Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.Column("decided_at", UtcTime),
    # The time of the last HTTP response that contained the question.
    sa.Column("replied_at", UtcTime),
    # True if an event stream has sent it.
    sa.Column("streamed", sa.Boolean, nullable=False, server_default=sa.false()),
    # The turn of the yes or no over HTTP that decided.
    sa.Column("decided_in", Text),
    # Changed arguments that the replica which runs the turn checks for another one, and its answer (JSON).
    sa.Column("proposed", sa.LargeBinary),
    sa.Column("checked", sa.LargeBinary),
    sa.Index("ix_approvals_open", "expires_at", sqlite_where=sa.text("state = 'open'")),
    sa.Index("ix_approvals_decided_in", "decided_in", sqlite_where=sa.text("decided_in IS NOT NULL")),
    sa.Index("uq_approvals_id", "id", unique=True),
)

#: Installed skills, and skills that were copied by hand into the skills directory, with the operator's
#: decision. ``folder`` is NULL for the latter. ``digest`` identifies the files that the operator reviewed.
#: ``granted`` lists what the scripts may use (JSON). ``next_folder`` is a newer version in quarantine.
skills = sa.Table(
    "skills",
    metadata,
    sa.Column("slug", Text, primary_key=True),
    sa.Column("origin", Text),
    sa.Column("subfolder", Text),
    sa.Column("folder", Text),
    sa.Column("digest", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("granted", Text),
    sa.Column("installed_at", UtcTime, nullable=False),
    sa.Column("decided_by", Text),
    sa.Column("decided_at", UtcTime),
    sa.Column("next_folder", Text),
    sa.Column("next_digest", Text),
)

#: The files of installed skills: for each folder an archive, in parts that are numbered from 0. The data
#: directory of each replica has a copy of the folder.
skill_archives = sa.Table(
    "skill_archives",
    metadata,
    sa.Column("folder", Text, primary_key=True),
    sa.Column("number", Integer, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: The number of changes of other rows, from which replicas notice them.
change_counts = sa.Table(
    "change_counts",
    metadata,
    sa.Column("subject", Text, primary_key=True),
    sa.Column("number", Integer, nullable=False),
)

#: Records that a connector stores for its account, such as encryption keys.
connector_records = sa.Table(
    "connector_records",
    metadata,
    sa.Column("account", Text, primary_key=True),
    sa.Column("name", Text, primary_key=True),
    sa.Column("key", Text, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: Files that tools store for users. ``owner`` is a digest of the user's id, and ``key`` is equal for names that
#: look the same.
workspace_files = sa.Table(
    "workspace_files",
    metadata,
    sa.Column("owner", Text, primary_key=True),
    sa.Column("key", Text, primary_key=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("size", Integer, nullable=False),
    sa.Column("changed_at", UtcTime, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: The accepted tools of MCP servers: the digest of each tool's definition (JSON). ``source`` is a digest of the
#: server's address or command, and ``version`` counts the changes of the row. Rows are not deleted.
mcp_pins = sa.Table(
    "mcp_pins",
    metadata,
    sa.Column("server", Text, primary_key=True),
    sa.Column("source", Text, primary_key=True),
    sa.Column("tools", Text, nullable=False),
    sa.Column("version", Integer, nullable=False),
)

#: Scheduled messages and tasks. ``due_at`` is the next due time or NULL. ``try_at`` is the time of the next
#: try: it is later than ``due_at`` after a refusal. ``dealt_with`` is the last due time that was run or missed,
#: and ``dealt_at`` is the time when that happened. ``turn_id`` is the last turn. ``made_by`` is a digest of the
#: tool call that created the schedule.
schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False, index=True),
    sa.Column("user", Text, index=True),
    sa.Column("token", Text),
    sa.Column("channel", Text, nullable=False),
    sa.Column("account", Text),
    sa.Column("place", Text),
    sa.Column("kind", Text, nullable=False),
    sa.Column("text", Text, nullable=False),
    sa.Column("cron", Text),
    sa.Column("timezone", Text, nullable=False),
    sa.Column("missed", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("due_at", UtcTime),
    sa.Column("try_at", UtcTime),
    sa.Column("tries", Integer, nullable=False),
    sa.Column("failures", Integer, nullable=False),
    sa.Column("reason", Text),
    sa.Column("dealt_with", UtcTime),
    sa.Column("dealt_at", UtcTime),
    sa.Column("turn_id", Text),
    sa.Column("made_by", sa.LargeBinary, unique=True),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Index("ix_schedules_try", "try_at", sqlite_where=sa.text("state = 'active'")),
)
