"""The text of each step, so that it can be read without the step's messages."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Add the column."""
    op.add_column("steps", sa.Column("text", sa.LargeBinary()))
