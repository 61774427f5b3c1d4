"""``torana replicas``: list the gateways that share a PostgreSQL database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from torana.cli.apps import new_app
from torana.cli.database import read_store
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.tables import print_rows
from torana.errors import ConfigInvalid

if TYPE_CHECKING:
    from torana.store.engine.postgres.replicas import Replica

app = new_app(is_group=True)


@app.callback()
def replicas() -> None:
    """Show the gateways that share a PostgreSQL database."""


@app.command("list")
def list_(config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False) -> None:
    """List the processes that use the database, with the numbers of their running turns."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    if settings.database_url is None:
        raise ConfigInvalid("database_url: only a PostgreSQL database is shared; set it to list its gateways")
    from torana.store.engine.postgres.erasures import list_unconfirmed
    from torana.store.engine.postgres.replicas import list_replicas

    found, pending = read_store(
        settings, lambda connection: (list_replicas(connection), list_unconfirmed(connection))
    )
    records = [_record(replica, pending.get(replica.id, 0)) for replica in found]
    if as_json:
        typer.echo(json.dumps({"items": records}, indent=2))
        return
    if not records:
        typer.echo("No gateway uses the database.")
        return
    heads = ["replica", "name", "version", "state", "turns", "started", "pending erasures"]
    print_rows(heads, ([str(value) for value in record.values()] for record in records))


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
