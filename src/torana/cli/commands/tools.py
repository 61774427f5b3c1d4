"""``torana tools``: the agent's tools and their permissions."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import print_rows
from torana.cli.terminal import on_one_line

app = new_app(is_group=True)


@app.callback()
def tools() -> None:
    """Make this a group: an application with one command is no group otherwise."""


@app.command("list")
def list_(
    options: CommonOptions,
    user: Annotated[
        str | None,
        typer.Option(
            help="Show the permissions of this user. Default: the permissions of calls without a user."
        ),
    ] = None,
    token: Annotated[str | None, typer.Option(help="Show the permissions of this token, by its id.")] = None,
    skill: Annotated[
        str | None, typer.Option(help="Show the permissions after the agent has opened this skill.")
    ] = None,
) -> None:
    """List all tools of the running gateway, including MCP tools, with their permissions."""
    gateway = options.gateway()
    named = {"user": user, "token": token, "skill": skill}
    query = urlencode({name: value for name, value in named.items() if value})
    document: dict[str, Any] = gateway.ask("GET", f"/v1/tools?{query}", read=dict)
    if options.as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    heads = ("tool", "permission", "why", "description")
    print_rows(heads, map(_row, document["items"]), texts=("description",))
    if document["unknown"]:
        strangers = on_one_line(", ".join(document["unknown"]))
        typer.echo(f"warning: [[permissions]] names unknown tools: {strangers}", err=True)


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    """Return a tool with a short reason, such as "rule 1", and the first sentence of its description."""
    why = str(item["why"]).removesuffix(" of [[permissions]]").removeprefix("the tool's ")
    first, end, _ = str(item["description"]).partition(". ")
    return item["name"], item["permission"], why, " ".join(first.split()) + end.strip()
