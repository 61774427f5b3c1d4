"""The replicas, the replica of a turn, and the request to cancel it."""

from alembic import op

revision = "0014"
down_revision = "0013"

_STATEMENTS = (
    'ALTER TABLE turns ADD COLUMN replica TEXT COLLATE "C"',
    "ALTER TABLE turns ADD COLUMN cancel_requested BOOLEAN DEFAULT false NOT NULL",
    "DROP TABLE torana_writer",
    """
    CREATE TABLE replicas (
        id TEXT COLLATE "C" NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        version TEXT COLLATE "C" NOT NULL,
        commits BIGINT NOT NULL,
        started_at TIMESTAMP WITH TIME ZONE NOT NULL,
        lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
        CONSTRAINT pk_replicas PRIMARY KEY (id)
    )
    """,
)


def upgrade() -> None:
    """Add the columns, and replace the one writer by replicas."""
    for statement in _STATEMENTS:
        op.execute(statement)
