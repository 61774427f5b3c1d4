"""The parts of input tokens, and the tokens of summaries."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the columns; for earlier usage the parts are unknown and stay 0."""
    for name in ("instruction_tokens", "tool_tokens", "history_tokens"):
        op.add_column("turns", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
        op.add_column("usage", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    for table in ("usage", "sessions"):
        op.add_column(table, sa.Column("summary_tokens", sa.BigInteger(), nullable=False, server_default="0"))
