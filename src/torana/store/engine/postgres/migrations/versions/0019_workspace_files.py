"""Users' files, which earlier versions stored in folders of the data directories."""

from alembic import op

revision = "0019"
down_revision = "0018"
additive = True

_FILES = """
CREATE TABLE workspace_files (
    owner TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    size BIGINT NOT NULL,
    changed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT pk_workspace_files PRIMARY KEY (owner, key)
)
"""


def upgrade() -> None:
    """Create the table; each replica moves the files from the folders in its data directory into it."""
    op.execute(_FILES)
