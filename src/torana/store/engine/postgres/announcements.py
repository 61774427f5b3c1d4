"""Announcements of changes to other replicas, through LISTEN and NOTIFY."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from torana.errors import StoreUnavailable
from torana.store.engine.postgres.connection import PostgresUrl

#: The triggers that announce a change when its transaction is committed. The payload is the id of the replica
#: that made the change, a space, and the id of the session. It names no session if a replica gives a turn back
#: to the queue, because every other replica may take it.
TRIGGERS = (
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


async def follow_announcements(url: PostgresUrl, replica: str) -> AsyncGenerator[str]:
    """Yield the session of each change by a replica other than ``replica``; "" if the change names no session.

    The first value is "", as soon as the connection listens: earlier changes may have been missed. Raises
    ``StoreUnavailable`` if the connection fails.
    """
    import psycopg

    try:
        async with await url.connect_async("listener") as connection:
            await connection.execute("LISTEN torana")
            yield ""
            async for note in connection.notifies():
                sender, _, session = note.payload.partition(" ")
                if sender != replica:
                    yield session
    except psycopg.Error as error:
        raise StoreUnavailable from error
