"""Approval questions in HTTP responses, the messages that decided them, and open model requests."""

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the columns and the index. An open question counts as not contained in any response."""
    op.add_column("approvals", sa.Column("replied_at", UtcTime()))
    op.add_column("approvals", sa.Column("decided_in", sa.Text()))
    op.add_column("turns", sa.Column("open_requests", sa.Integer(), nullable=False, server_default="0"))
    op.create_index(
        "ix_approvals_decided_in",
        "approvals",
        ["decided_in"],
        sqlite_where=sa.text("decided_in IS NOT NULL"),
    )
