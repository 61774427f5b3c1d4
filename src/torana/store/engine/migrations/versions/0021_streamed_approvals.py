"""Approvals that event streams have sent."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the column. An open approval counts as not sent."""
    op.add_column("approvals", sa.Column("streamed", sa.Boolean(), nullable=False, server_default=sa.false()))
