"""Changed arguments of calls that another replica runs."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("approvals", sa.Column("proposed", sa.LargeBinary()))
    op.add_column("approvals", sa.Column("checked", sa.LargeBinary()))
