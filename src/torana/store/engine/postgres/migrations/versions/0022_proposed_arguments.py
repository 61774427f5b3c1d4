"""Changed arguments of calls that another replica runs."""

from alembic import op

revision = "0022"
down_revision = "0021"
additive = True

_ANNOUNCE = """
CREATE TRIGGER announce_proposal AFTER UPDATE OF proposed ON approvals FOR EACH ROW
WHEN (NEW.proposed IS NOT NULL) EXECUTE FUNCTION announce_decision()
"""


def upgrade() -> None:
    """Add the columns, and announce changed arguments like decisions."""
    op.execute("ALTER TABLE approvals ADD COLUMN proposed BYTEA, ADD COLUMN checked BYTEA")
    op.execute(_ANNOUNCE)
