"""``torana replicas``: list the gateways that share a PostgreSQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import print_list
from torana.errors import ConfigInvalid

if TYPE_CHECKING:
    from torana.store.engine.postgres.replicas import Replica

app = new_app(is_group=True)


@app.callback()
def replicas() -> None:
    """Show the gateways that share a PostgreSQL database."""


@app.command("list")
def list_(options: CommonOptions) -> None:
    """List the processes that use the database, with the numbers of their running turns."""
    if options.settings.database_url is None:
        raise ConfigInvalid("database_url: only a PostgreSQL database is shared; set it to list its gateways")
    from torana.store.engine.postgres.erasures import list_unconfirmed
    from torana.store.engine.postgres.replicas import list_replicas

    found, pending = options.read_store(
        lambda connection: (list_replicas(connection), list_unconfirmed(connection))
    )
    records = [_record(replica, pending.get(replica.id, 0)) for replica in found]
    heads = ["replica", "name", "version", "state", "turns", "started", "pending erasures"]
    rows = ([str(value) for value in record.values()] for record in records)
    empty = "No gateway uses the database."
    print_list({"items": records}, heads, rows, empty=empty, as_json=options.as_json)


def _record(replica: Replica, pending: int) -> dict[str, Any]:
    return {
        "id": replica.id,
        "name": replica.name,
        "version": replica.version,
        "state": "alive" if replica.alive else "ended",
        "turns": replica.turns,
        "startedAt": replica.started_at.isoformat(timespec="seconds"),
        "pendingErasures": pending,
    }
