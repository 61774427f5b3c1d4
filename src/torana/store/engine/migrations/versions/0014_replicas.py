"""The replica of a turn, and the request to cancel it."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("turns", sa.Column("replica", sa.Text()))
    cancels = sa.Column("cancel_requested", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("turns", cancels)
