"""The text of each step, so that it can be read without the step's messages."""

from alembic import op

revision = "0023"
down_revision = "0022"
additive = True


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE steps ADD COLUMN text BYTEA")
