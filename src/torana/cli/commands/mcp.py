"""``torana mcp``: the status of MCP servers, and the approval of their tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer

from torana.characters import escape_unprintable
from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import print_rows
from torana.cli.terminal import indented, on_one_line
from torana.errors import OperatorError

app = new_app(is_group=True)


@app.command("list")
def list_(options: CommonOptions) -> None:
    """Show each MCP server of the running gateway, its tools, and the reasons for withheld tools."""
    found = options.gateway().ask("GET", "/v1/mcp", read=_items)
    if options.as_json:
        typer.echo(json.dumps({"items": found}, indent=2))
        return
    if not found:
        typer.echo("There are no MCP servers; a table such as [mcp.time] in the settings adds one.")
        return
    heads = ("server", "transport", "state", "tools", "connections", "reason")
    print_rows(heads, [_row(one) for one in found], texts=("reason",))
    offered = [tool for one in found for tool in one["offered"]]
    tools = [(tool["name"], tool["permission"], "; ".join(tool["notes"]) or "-") for tool in offered]
    left_out = [
        (f"{one['server']}: {tool['tool']}", "-", tool["reason"]) for one in found for tool in one["leftOut"]
    ]
    typer.echo()
    print_rows(("tool", "permission", "note"), [*tools, *left_out], texts=("note",))


@app.command()
def approve(
    options: CommonOptions,
    server: Annotated[str, typer.Argument(help="The server's name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Show the new and changed tools of a server, and approve them.

    The output is the text that the model would read. A line `note:` says what Torana removed or shortened. A
    line `the server's text:` shows text that the model does not receive.
    """
    gateway = options.gateway()
    one = next((one for one in gateway.ask("GET", "/v1/mcp", read=_items) if one["server"] == server), None)
    if one is None:
        raise OperatorError(f"there is no MCP server {server!r}; `torana mcp list` shows the servers")
    if one["held"] is None:
        typer.echo(f"No tool of {server} waits for approval.", err=options.as_json)
        return
    for tool in one["waiting"]:
        typer.echo(f"{on_one_line(tool['tool'])}: {indented(tool['description'], by=4)}", err=options.as_json)
        typer.echo(json.dumps(tool["inputSchema"]), err=options.as_json)
        for note in tool["notes"]:
            typer.echo(on_one_line(f"note: {note}"), err=options.as_json)
        for text in tool["withheld"]:
            typer.echo(f"the server's text: {escape_unprintable(text)}", err=options.as_json)
        typer.echo(err=options.as_json)
    if not yes:
        typer.confirm("Offer these tools to the agent?", abort=True, err=options.as_json)
    path, body = f"/v1/mcp/{server}/approve", {"held": one["held"]}
    after: dict[str, Any] = gateway.ask("POST", path, read=dict, body=body)
    if options.as_json:
        typer.echo(json.dumps(after, indent=2))
    else:
        typer.echo(f"{server} offers {after['tools']} tools.")


def _items(document: Any) -> list[Mapping[str, Any]]:
    return list(cast("list[Mapping[str, Any]]", document["items"]))


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one["server"],
        one["transport"],
        one["state"],
        str(one["tools"]),
        str(one["connections"]),
        one["reason"] or "-",
    )
