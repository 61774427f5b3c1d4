"""Announcements to other replicas, through LISTEN and NOTIFY: changes of turns, and activity."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from torana.errors import StoreUnavailable
from torana.store.engine.database import Announcement, Connection
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
    """
    CREATE TRIGGER announce_proposal AFTER UPDATE OF proposed ON approvals FOR EACH ROW
    WHEN (NEW.proposed IS NOT NULL) EXECUTE FUNCTION announce_decision()
    """,
)


#: The channels of changes, and of the activity of replicas.
_CHANGES, _ACTIVITY = "torana", "torana_activity"

#: The maximum bytes of a text of ``announce_activity``: a payload must be shorter than 8,000 bytes.
LONGEST_ACTIVITY = 7_900

_ANNOUNCE = "SELECT pg_notify(%s, concat(current_setting('torana.replica', true), ' ', %s::text))"


def announce_activity(connection: Connection, texts: Sequence[str]) -> None:
    """Send each text to the other replicas, in this order."""
    for text in texts:
        connection.exec_driver_sql(_ANNOUNCE, (_ACTIVITY, text))


def announce_idle_sessions(connection: Connection) -> None:
    """Ask all other replicas to start the queued turns of idle sessions, which this replica no longer does."""
    connection.exec_driver_sql(_ANNOUNCE, (_CHANGES, ""))


async def follow_announcements(url: PostgresUrl, replica: str) -> AsyncGenerator[Announcement]:
    """Yield the announcements of all replicas except ``replica``.

    The first announcement only says that the connection listens (``is_first``). Raises ``StoreUnavailable`` if
    the connection fails.
    """
    import psycopg

    try:
        async with await url.connect_async("listener") as connection:
            await connection.execute(f"LISTEN {_CHANGES}; LISTEN {_ACTIVITY}".encode())
            yield Announcement(is_first=True)
            async for note in connection.notifies():
                sender, _, text = note.payload.partition(" ")
                if sender == replica:
                    continue
                is_change = note.channel == _CHANGES
                yield Announcement(session=text) if is_change else Announcement(activity=text)
    except psycopg.Error as error:
        raise StoreUnavailable from error
