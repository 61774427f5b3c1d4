"""Sessions, turns, history and memories."""

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the first tables."""
    op.create_table(
        "memories",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("superseded_at", UtcTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_memories")),
    )
    op.create_index("ix_memories_user", "memories", ["owner", "user", "created_at"], unique=False)
    op.create_index(
        "uq_memories_live",
        "memories",
        ["owner", "user", "subject"],
        unique=True,
        sqlite_where=sa.text("superseded_at IS NULL AND subject <> ''"),
        postgresql_where=sa.text("superseded_at IS NULL AND subject <> ''"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("next_seq", sa.Integer(), nullable=False),
        sa.Column("speaker", sa.Text(), nullable=True),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("owner", "channel", name=op.f("uq_sessions_owner_channel")),
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("failure_code", sa.Text(), nullable=True),
        sa.Column("failure_detail", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_turns_session_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        sa.UniqueConstraint("session_id", "seq", name=op.f("uq_turns_session_id_seq")),
    )
    op.create_index(
        "ix_turns_unfinished",
        "turns",
        ["session_id", "seq"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'running', 'waiting')"),
        postgresql_where=sa.text("state IN ('queued', 'running', 'waiting')"),
    )
    op.create_index(
        "uq_turns_active",
        "turns",
        ["session_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('running', 'waiting')"),
        postgresql_where=sa.text("state IN ('running', 'waiting')"),
    )
    op.create_table(
        "history",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("messages", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_history_session_id")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_history_turn_id")),
        sa.PrimaryKeyConstraint("session_id", "seq", name=op.f("pk_history")),
    )
