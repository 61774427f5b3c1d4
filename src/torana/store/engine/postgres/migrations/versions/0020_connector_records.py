"""Records of connectors, such as encryption keys."""

from alembic import op

revision = "0020"
down_revision = "0019"
additive = True

_RECORDS = """
CREATE TABLE connector_records (
    account TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT pk_connector_records PRIMARY KEY (account, name, key)
)
"""


def upgrade() -> None:
    """Create the table."""
    op.execute(_RECORDS)
