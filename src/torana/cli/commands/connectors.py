"""``torana connectors``: the status of chat platforms, and reloading their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import print_list
from torana.cli.terminal import on_one_line

app = new_app(is_group=True)


@app.command("list")
def list_(options: CommonOptions) -> None:
    """Show the status of each connector of the running gateway, and the reason if it is not active."""
    found = options.gateway().ask("GET", "/v1/status", read=_connectors)
    print_list(
        {"items": found},
        ("account", "kind", "state", "since", "waiting", "next try", "reason"),
        map(_row, found),
        empty="There are no connectors; a table such as [connectors.telegram] in the settings adds one.",
        texts=("reason",),
        as_json=options.as_json,
    )


@app.command()
def reload(options: CommonOptions) -> None:
    """Reload the settings of the connectors. Accounts without changes stay connected."""
    changed: list[str] = options.gateway().ask(
        "POST", "/v1/connectors/reload", read=lambda document: list(document["changed"])
    )
    if options.as_json:
        typer.echo(json.dumps({"changed": changed}, indent=2))
    else:
        typer.echo(on_one_line(f"Changed: {', '.join(changed)}") if changed else "No connector changed.")


def _connectors(document: Any) -> list[Mapping[str, Any]]:
    return list(cast("list[Mapping[str, Any]]", document["connectors"]))


def _row(status: Mapping[str, Any]) -> tuple[str, ...]:
    waiting = ", ".join(f"{count} {state}" for state, count in status["deliveries"].items())
    return (
        status["account"],
        status["kind"],
        status["state"],
        _minute(status["since"]),
        waiting or "-",
        _minute(status["nextTry"]),
        status["reason"] or "-",
    )


def _minute(time: str | None) -> str:
    return "-" if time is None else time[:16].replace("T", " ")
