"""Approvals, decisions on skills, and schedules."""

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the tables."""
    _create_approvals()
    _create_skills()
    _create_schedules()


def _create_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("arguments", sa.LargeBinary(), nullable=False),
        sa.Column("said", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("edited", sa.LargeBinary()),
        sa.Column("reason", sa.Text()),
        sa.Column("decided_by", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.Column("decided_at", UtcTime()),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_approvals_turn_id"),
        sa.PrimaryKeyConstraint("turn_id", "step", "call_id", name="pk_approvals"),
    )
    op.create_index("ix_approvals_open", "approvals", ["expires_at"], sqlite_where=sa.text("state = 'open'"))


def _create_skills() -> None:
    op.create_table(
        "skills",
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text()),
        sa.Column("subfolder", sa.Text()),
        sa.Column("folder", sa.Text()),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("granted", sa.Text()),
        sa.Column("installed_at", UtcTime(), nullable=False),
        sa.Column("decided_by", sa.Text()),
        sa.Column("decided_at", UtcTime()),
        sa.Column("next_folder", sa.Text()),
        sa.Column("next_digest", sa.Text()),
        sa.PrimaryKeyConstraint("slug", name="pk_skills"),
    )


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("user", sa.Text()),
        sa.Column("token", sa.Text()),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("account", sa.Text()),
        sa.Column("place", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text()),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("missed", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("due_at", UtcTime()),
        sa.Column("try_at", UtcTime()),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("dealt_with", UtcTime()),
        sa.Column("dealt_at", UtcTime()),
        sa.Column("turn_id", sa.Text()),
        sa.Column("made_by", sa.LargeBinary()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
        sa.UniqueConstraint("made_by", name="uq_schedules_made_by"),
    )
    op.create_index("ix_schedules_owner", "schedules", ["owner"])
    op.create_index("ix_schedules_user", "schedules", ["user"])
    op.create_index("ix_schedules_try", "schedules", ["try_at"], sqlite_where=sa.text("state = 'active'"))
