"""The accepted tools of MCP servers."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Create the table; the gateway fills it from the files in the data directory."""
    op.create_table(
        "mcp_pins",
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("tools", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("server", "source", name="pk_mcp_pins"),
    )
