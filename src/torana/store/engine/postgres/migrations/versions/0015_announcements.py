"""Triggers that announce changes of turns to other replicas."""

from alembic import op

revision = "0015"
down_revision = "0014"

_STATEMENTS = (
    """
    CREATE FUNCTION announce_turn() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('torana', concat(
            current_setting('torana.replica', true), ' ',
            CASE WHEN TG_OP = 'INSERT' OR NEW.state <> 'queued' THEN NEW.session_id END
        ));
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION announce_decision() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('torana', concat(current_setting('torana.replica', true), ' ', session_id))
        FROM turns WHERE id = NEW.turn_id;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER announce_queued_turn AFTER INSERT ON turns FOR EACH ROW
    WHEN (NEW.state = 'queued') EXECUTE FUNCTION announce_turn()
    """,
    """
    CREATE TRIGGER announce_changed_turn AFTER UPDATE OF state, ended_at, cancel_requested ON turns FOR EACH ROW
    WHEN (
        (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL)
        OR (OLD.state <> 'queued' AND NEW.state = 'queued')
        OR (NEW.cancel_requested AND NOT OLD.cancel_requested)
    ) EXECUTE FUNCTION announce_turn()
    """,
    """
    CREATE TRIGGER announce_decision AFTER UPDATE OF state ON approvals FOR EACH ROW
    WHEN (OLD.state = 'open' AND NEW.state <> 'open') EXECUTE FUNCTION announce_decision()
    """,
)


def upgrade() -> None:
    """Create the functions and the triggers."""
    for statement in _STATEMENTS:
        op.execute(statement)
