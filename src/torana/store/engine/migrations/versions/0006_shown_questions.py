"""The delivery of each approval question, so that a yes answers only a question that was shown."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column. An open question counts as not shown and is sent again."""
    op.add_column("approvals", sa.Column("delivery", sa.Integer()))
