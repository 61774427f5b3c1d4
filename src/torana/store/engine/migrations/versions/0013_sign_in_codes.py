"""One-time codes for signing in, and the tokens that they create."""

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Create the table and the column; no existing token was created by a code."""
    op.add_column("tokens", sa.Column("issued_by", sa.Text()))
    op.create_table(
        "sign_in_codes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("issued_by", sa.Text()),
        sa.Column("user", sa.Text()),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("lifetime", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sign_in_codes"),
        sa.UniqueConstraint("digest", name="uq_sign_in_codes_digest"),
    )
