"""An empty revision, because only replicas on PostgreSQL carry out the erasures of each other."""

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Keep the number equal to that of PostgreSQL."""
