"""``torana audit``: what operators did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from torana.api.tokens import audit_item
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.terminal import print_rows
from torana.store import audit as rows
from torana.store.backup import DATABASE_NAME
from torana.store.reading import read_database

app = typer.Typer()


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the newest administrative acts: who did what to what, when, and from where."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.listed, before=None, limit=limit)
    found = [audit_item(entry) for entry in read_database(settings.data_dir / DATABASE_NAME, work)]
    if as_json:
        typer.echo(json.dumps({"items": found}, indent=2))
        return
    if not found:
        typer.echo("Nothing was done yet.")
        return
    print_rows(("at", "who", "from", "action", "target", "detail"), map(_row, found))


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    detail = ", ".join(f"{name}: {_told(value)}" for name, value in item["detail"].items())
    named = (item[name] for name in ("principal", "source", "action", "target"))
    return item["at"][:19].replace("T", " "), *named, detail


def _told(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
