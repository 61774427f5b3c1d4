"""Exclude turns that were accepted before a session was reset and ended after it from the history."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column. Earlier conversations do not change."""
    op.add_column("sessions", sa.Column("fresh_seq", sa.Integer(), nullable=False, server_default="0"))
