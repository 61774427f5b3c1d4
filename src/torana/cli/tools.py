"""``torana tools``: what the agent may do, and why."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import the_gateway
from torana.cli.terminal import on_one_line, print_rows

app = typer.Typer(help="Show the agent's tools, and whether they may run.", no_args_is_help=True)


@app.callback()
def tools() -> None:
    """Show the agent's tools, and whether they may run."""


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Option(help="For this user; else for nobody in particular.")] = None,
    token: Annotated[str | None, typer.Option(help="For this token, by its id.")] = None,
    skill: Annotated[str | None, typer.Option(help="With this skill opened.")] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List all tools of the running gateway, those of MCP servers included, with what holds for a call."""
    gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    named = {"user": user, "token": token, "skill": skill}
    query = urlencode({name: value for name, value in named.items() if value})
    document: dict[str, Any] = gateway.ask("GET", f"/v1/tools?{query}", read=dict)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    rows = [(item["name"], item["permission"], item["why"], item["description"]) for item in document["items"]]
    print_rows(("tool", "permission", "why", "what it does"), rows)
    if document["unknown"]:
        strangers = on_one_line(", ".join(document["unknown"]))
        typer.echo(f"warning: [[permissions]] names what is no tool: {strangers}", err=True)
