"""``torana approvals``: calls of tools that wait for somebody's yes."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import the_gateway
from torana.cli.terminal import print_rows, printable
from torana.errors import OperatorError

app = typer.Typer(help="List, approve and deny calls of tools that wait for a yes.", no_args_is_help=True)

_TurnId = Annotated[str, typer.Argument(help="The turn's id, such as turn_0198….")]
_CallId = Annotated[
    str | None, typer.Argument(help="The call's id, as the list shows it, where the turn asks about several.")
]


@app.command("list")
def list_(config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False) -> None:
    """List what is asked at this moment, the newest first."""
    gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    document: dict[str, Any] = gateway.ask("GET", "/v1/approvals?limit=200", read=dict)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    if not document["items"]:
        typer.echo("Nothing is asked.")
        return
    print_rows(("turn", "call", "tool", "until", "arguments"), map(_row, document["items"]))


@app.command()
def approve(
    turn_id: _TurnId,
    call_id: _CallId = None,
    arguments: Annotated[
        str | None, typer.Option(help="Run it with these instead of the model's, as a JSON object.")
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Let a call run."""
    body: dict[str, Any] = {"decision": "approve"}
    if arguments is not None:
        body["arguments"] = _object(arguments)
    _decide(turn_id, call_id, body, config, data_dir)


@app.command()
def deny(
    turn_id: _TurnId,
    call_id: _CallId = None,
    reason: Annotated[str | None, typer.Option(help="What the model is told.")] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Do not let a call run."""
    body = {"decision": "deny"} | ({"reason": reason} if reason else {})
    _decide(turn_id, call_id, body, config, data_dir)


def _decide(turn_id: str, call_id: str | None, body: dict[str, Any], config: Any, data_dir: Any) -> None:
    gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    turn = f"/v1/turns/{quote(turn_id, safe='')}"
    call_id = call_id or gateway.ask("GET", turn, read=_only_call)
    path = f"{turn}/approvals/{quote(call_id, safe='')}"
    told = gateway.ask("POST", path, body=body, read=lambda item: f"{item['tool']} is {item['state']}")
    typer.echo(printable(told))


def _only_call(turn: dict[str, Any]) -> str:
    """The id of the one call that a turn asks about. Raises ``OperatorError`` where that is not one."""
    asked = [item["callId"] for item in turn["approvals"]]
    if not asked:
        raise OperatorError(f"{turn['id']} asks nothing; `torana approvals list` shows what is asked")
    if len(asked) > 1:
        raise OperatorError(f"{turn['id']} asks about {len(asked)} calls; name one of them: {', '.join(asked)}")
    return asked[0]


def _object(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--arguments is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('--arguments must be an object such as {"amount": 5}')
    return value  # pyright: ignore[reportUnknownVariableType]


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    until = item["expiresAt"][:16].replace("T", " ")
    return item["turnId"], item["callId"], item["tool"], until, json.dumps(item["arguments"])
