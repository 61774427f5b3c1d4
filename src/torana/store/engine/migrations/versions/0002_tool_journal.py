"""The tool journal, idempotency keys, and the handling of messages to a busy session."""

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the tables and columns."""
    op.add_column("sessions", sa.Column("fresh_from", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_sessions_recent", "sessions", ["owner", "updated_at"])
    op.add_column("turns", sa.Column("crashes", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("turns", sa.Column("failure_retry_after", sa.Integer()))
    op.add_column("turns", sa.Column("on_busy", sa.Text(), nullable=False, server_default="queue"))
    op.add_column("turns", sa.Column("merged_into", sa.Text()))
    op.add_column("turns", sa.Column("merged_step", sa.Integer()))
    op.create_table(
        "keys",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_keys_turn_id"),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_keys"),
    )
    op.create_index("ix_keys_created_at", "keys", ["created_at"])
    op.create_table(
        "steps",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_steps_turn_id"),
        sa.PrimaryKeyConstraint("turn_id", "number", name="pk_steps"),
    )
    op.create_table(
        "calls",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("idempotent", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_calls_turn_id"),
        sa.PrimaryKeyConstraint("turn_id", "step", "id", name="pk_calls"),
    )
