"""``torana config``: show the settings with their origins, and check them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import typer

from torana.cli.apps import new_app
from torana.cli.flags import ConfigFlag, JsonFlag, faulty_settings_from, settings_from
from torana.cli.terminal import on_one_line, print_result, print_table
from torana.errors import ConfigInvalid

if TYPE_CHECKING:
    from torana.config import Loaded

app = new_app(is_group=True)


@app.command()
def show(config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Show every setting with its value and origin. Secrets are hidden."""
    loaded = settings_from(config=config)
    if as_json:
        typer.echo(json.dumps(_entries(loaded), indent=2))
    else:
        _print_table(loaded)


@app.command()
def check(config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Check the settings. Each error is one line on standard error, and the exit code is 2.

    The check imports modules that the settings name, such as your own tools. It starts nothing and makes no
    network request.
    """
    # Imported here because it imports most of the gateway, which `config show` does not need.
    from torana.app.checks import settings_faults

    loaded, faults = faulty_settings_from(config=config)
    faults = [*faults, *settings_faults(loaded)]
    if faults and not as_json:
        raise ConfigInvalid("\n".join(faults))
    print_result("The settings are valid.", {"valid": not faults, "faults": faults}, as_json=as_json)
    if faults:
        raise typer.Exit(2)


def _entries(loaded: Loaded) -> dict[str, dict[str, Any]]:
    from torana.config.shown import shown_settings

    return {one.name: {"value": one.value, "origin": one.origin} for one in shown_settings(loaded)}


def _print_table(loaded: Loaded) -> None:
    from rich.table import Table

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
