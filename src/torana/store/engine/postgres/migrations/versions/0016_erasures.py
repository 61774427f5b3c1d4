"""Erasures that each replica carries out, and the name of the cluster of replicas."""

from alembic import op

revision = "0016"
down_revision = "0015"
additive = True

_STATEMENTS = (
    """
    CREATE TABLE erasures (
        number BIGINT GENERATED ALWAYS AS IDENTITY,
        id TEXT COLLATE "C" NOT NULL,
        "user" TEXT COLLATE "C" NOT NULL,
        at TIMESTAMP WITH TIME ZONE NOT NULL,
        CONSTRAINT pk_erasures PRIMARY KEY (number),
        CONSTRAINT uq_erasures_id UNIQUE (id)
    )
    """,
    "ALTER TABLE replicas ADD COLUMN erased BIGINT DEFAULT 0 NOT NULL",
    """
    CREATE FUNCTION announce_erasure() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('torana', concat(current_setting('torana.replica', true), ' '));
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER announce_erasure AFTER INSERT ON erasures FOR EACH ROW
    EXECUTE FUNCTION announce_erasure()
    """,
    'CREATE TABLE cluster (name TEXT COLLATE "C" NOT NULL)',
)


def upgrade() -> None:
    """Create the tables, the column and the trigger."""
    for statement in _STATEMENTS:
        op.execute(statement)
