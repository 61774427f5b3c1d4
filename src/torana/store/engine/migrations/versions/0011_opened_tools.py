"""The tools that a session has opened."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column; existing sessions have opened no tools."""
    op.add_column("sessions", sa.Column("opened_tools", sa.Text(), nullable=False, server_default=""))
