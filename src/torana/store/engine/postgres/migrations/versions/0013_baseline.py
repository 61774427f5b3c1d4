"""All tables, as they are at revision 0013 of SQLite."""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = None


def upgrade() -> None:
    """Execute the statements of the file beside this one."""
    for statement in Path(__file__).with_suffix(".sql").read_text().split(";\n\n"):
        op.execute(statement)
