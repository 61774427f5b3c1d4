"""Unique ids of approvals."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the index."""
    op.create_index("uq_approvals_id", "approvals", ["id"], unique=True)
