"""${message}"""

import sqlalchemy as sa
from alembic import op

from torana.store.tables import UtcTime

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Go from ${down_revision} to ${up_revision}."""
    ${upgrades if upgrades else "pass"}
