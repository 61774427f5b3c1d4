"""The files of installed skills, and counters by which replicas notice changes."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Create the tables; the gateway fills them from the folders in the data directory."""
    op.create_table(
        "skill_archives",
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("folder", "number", name="pk_skill_archives"),
    )
    op.create_table(
        "change_counts",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_change_counts"),
    )
