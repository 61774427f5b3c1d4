"""An empty revision, because only PostgreSQL announces changes."""

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Keep the number equal to that of PostgreSQL."""
