"""New conversations: what was accepted before one began and ended after it does not belong to it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column. Conversations that were begun before are shown as they were."""
    op.add_column("sessions", sa.Column("fresh_seq", sa.Integer(), nullable=False, server_default="0"))
