"""Approvals that event streams have sent."""

from alembic import op

revision = "0021"
down_revision = "0020"
additive = True


def upgrade() -> None:
    """Add the column. An open approval counts as not sent."""
    op.execute("ALTER TABLE approvals ADD COLUMN streamed BOOLEAN DEFAULT false NOT NULL")
