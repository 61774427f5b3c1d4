"""``torana audit``: the actions of operators."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.database import read_store
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.tables import print_rows

if TYPE_CHECKING:
    from torana.store.rows.audit import AuditEntry

app = new_app()


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of entries.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the newest administrative actions with their time, principal, object and source."""
    from torana.api.schemas.people import AuditEntryBody
    from torana.store.rows import audit as rows

    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.list_entries, before=None, limit=limit)
    found = read_store(settings, work)
    if as_json:
        items = [AuditEntryBody.from_entry(entry).model_dump(mode="json") for entry in found]
        typer.echo(json.dumps({"items": items}, indent=2))
        return
    if not found:
        typer.echo("There are no recorded actions yet.")
        return
    print_rows(("at", "who", "from", "action", "target", "detail"), map(_row, found), texts=("detail",))


def _row(entry: AuditEntry) -> tuple[str, ...]:
    detail = ", ".join(f"{name}: {_format_value(value)}" for name, value in entry.detail.items())
    act = entry.act
    return f"{act.at:%Y-%m-%d %H:%M:%S}", act.principal, act.source, entry.action, entry.target, detail


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
