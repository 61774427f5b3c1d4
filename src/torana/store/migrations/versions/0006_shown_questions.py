"""Questions in chats: which delivery says each of them, so that a yes answers what was shown."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column. A question that is open at this moment counts as not shown, and is asked once more."""
    op.add_column("approvals", sa.Column("delivery", sa.Integer()))
