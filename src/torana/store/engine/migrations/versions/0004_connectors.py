"""Chat platforms: the origin and files of turns, deliveries, senders and leases."""

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns and tables."""
    op.add_column("turns", sa.Column("account", sa.Text()))
    op.add_column("turns", sa.Column("message", sa.Text()))
    op.add_column("turns", sa.Column("place", sa.Text()))
    op.add_column("turns", sa.Column("files", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("uq_turns_message", "turns", ["account", "message"], unique=True)
    _create_deliveries()
    _create_attachments()
    op.create_table(
        "senders",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("user", sa.Text()),
        sa.Column("code", sa.LargeBinary()),
        sa.Column("codes", sa.Integer(), nullable=False),
        sa.Column("asked_at", UtcTime(), nullable=False),
        sa.Column("decided_at", UtcTime()),
        sa.PrimaryKeyConstraint("kind", "sender", name="pk_senders"),
    )
    op.create_index("ix_senders_code", "senders", ["code"])
    op.create_table(
        "subscriptions",
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event", "account", name="pk_subscriptions"),
    )
    op.create_table(
        "leases",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("account", name="pk_leases"),
    )


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text()),
        sa.Column("root", sa.Integer()),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("is_cut", sa.Boolean(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("unsure", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcTime(), nullable=False),
        sa.Column("shown_as", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime()),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_deliveries_turn_id"),
        sa.PrimaryKeyConstraint("number", name="pk_deliveries"),
        sa.UniqueConstraint("id", name="uq_deliveries_id"),
        sa.UniqueConstraint("turn_id", "part", name="uq_deliveries_turn_id_part"),
        sqlite_autoincrement=True,
    )
    undelivered = sa.text("state IN ('preview', 'pending', 'sending')")
    unsent = sa.text("state NOT IN ('sent', 'dropped')")
    op.create_index("ix_deliveries_unsent", "deliveries", ["account", "state"], sqlite_where=unsent)
    op.create_index("ix_deliveries_ended", "deliveries", ["ended_at"])
    op.create_index("ix_deliveries_open", "deliveries", ["account", "number"], sqlite_where=undelivered)


def _create_attachments() -> None:
    op.create_table(
        "attachments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_attachments_turn_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attachments"),
    )
    op.create_index("ix_attachments_turn_id", "attachments", ["turn_id"])
