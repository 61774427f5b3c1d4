"""``torana config``: what the gateway is told, where that came from, and whether it is right."""

from __future__ import annotations

import json
from typing import Any, cast

import typer
from rich.table import Table

from torana.cli.flags import ConfigFlag, JsonFlag, faulty_settings_from, settings_from
from torana.cli.terminal import on_one_line, print_table
from torana.config import SECRETS, TABLES, Loaded
from torana.errors import ConfigInvalid

#: What stands for a secret that is set.
HIDDEN = "********"

app = typer.Typer(help="Show and check the settings.", no_args_is_help=True)


@app.command()
def show(config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Show every setting, its value, and where it came from; secrets stay hidden."""
    loaded = settings_from(config=config)
    if as_json:
        typer.echo(json.dumps(_entries(loaded), indent=2))
    else:
        _print_table(loaded)


@app.command()
def check(config: ConfigFlag = None) -> None:
    """Check the settings: each fault is a line on standard error, and the exit code is then 2.

    What they name is imported, such as your own tools; nothing is started, and nobody is called.
    """
    # Everything heavy hangs on it, and `config show` needs nothing of that.
    from torana.app.checks import settings_faults

    loaded, faults = faulty_settings_from(config=config)
    if faults := [*faults, *settings_faults(loaded)]:
        raise ConfigInvalid("\n".join(faults))
    typer.echo("The settings are right.")


def _entries(loaded: Loaded) -> dict[str, dict[str, Any]]:
    values = loaded.settings.model_dump(mode="json")
    values |= {name: HIDDEN for name in SECRETS if values[name] is not None}
    values |= {name: dict.fromkeys(values[name], HIDDEN) for name in TABLES}
    return {name: {"value": values[name], "origin": origin} for name, origin in loaded.origins.items()}


def _print_table(loaded: Loaded) -> None:
    table = Table("setting", "value", "origin", box=None, pad_edge=False)
    for name, entry in _entries(loaded).items():
        table.add_row(name, *map(on_one_line, (_cell(entry["value"]), entry["origin"])))
    print_table(table)


def _cell(value: Any) -> str:
    if value is None or value in ([], {}):
        return "not set"
    if isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value)):
        return ", ".join(cast("list[str]", value))
    if isinstance(value, str) and value.isprintable():
        return value
    return json.dumps(value)
