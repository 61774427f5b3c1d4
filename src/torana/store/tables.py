"""The tables, for every database alike; ``migrations/versions`` builds exactly these (a test compares)."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

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
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("updated_at", UtcTime, nullable=False),
    sa.UniqueConstraint("owner", "channel"),
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
    sa.Column("user", sa.Text),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("reply", sa.Text),
    sa.Column("failure_code", sa.Text),
    sa.Column("failure_detail", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("input_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("cost_usd", sa.Float, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime),
    sa.UniqueConstraint("session_id", "seq"),
    # Invariant 2: the database itself holds that a session has one running turn at most.
    sa.Index("uq_turns_active", "session_id", unique=True, sqlite_where=active, postgresql_where=active),
    sa.Index("ix_turns_unfinished", "session_id", "seq", sqlite_where=unfinished, postgresql_where=unfinished),
)

#: What the model said and saw, a row per turn: a window of whole turns never parts a call from its result.
history = sa.Table(
    "history",
    metadata,
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), nullable=False),
    sa.Column("messages", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

_live = sa.text("superseded_at IS NULL AND subject <> ''")

#: What a user asked to be remembered; at most one live row per subject, and '' is no subject.
memories = sa.Table(
    "memories",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("turn_id", sa.Text),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("superseded_at", UtcTime),
    sa.Index("ix_memories_user", "owner", "user", "created_at"),
    sa.Index(
        "uq_memories_live",
        "owner",
        "user",
        "subject",
        unique=True,
        sqlite_where=_live,
        postgresql_where=_live,
    ),
)
