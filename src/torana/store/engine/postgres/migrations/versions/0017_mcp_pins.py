"""The accepted tools of MCP servers."""

from alembic import op

revision = "0017"
down_revision = "0016"
additive = True

_TABLE = """
CREATE TABLE mcp_pins (
    server TEXT COLLATE "C" NOT NULL,
    source TEXT COLLATE "C" NOT NULL,
    tools TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT pk_mcp_pins PRIMARY KEY (server, source)
)
"""


def upgrade() -> None:
    """Create the table; the replicas fill it from the files in their data directories."""
    op.execute(_TABLE)
