"""Exclude from the history turns that were accepted before a reset of the session and ended after it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column. Earlier conversations do not change."""
    op.add_column("sessions", sa.Column("fresh_seq", sa.Integer(), nullable=False, server_default="0"))
