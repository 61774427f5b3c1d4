"""The files of installed skills, and counters by which replicas notice changes."""

from alembic import op

revision = "0018"
down_revision = "0017"
additive = True

_ARCHIVES = """
CREATE TABLE skill_archives (
    folder TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT pk_skill_archives PRIMARY KEY (folder, number)
)
"""
_COUNTS = """
CREATE TABLE change_counts (
    subject TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    CONSTRAINT pk_change_counts PRIMARY KEY (subject)
)
"""


def upgrade() -> None:
    """Create the tables; the replicas fill them from the folders in their data directories."""
    op.execute(_ARCHIVES)
    op.execute(_COUNTS)
