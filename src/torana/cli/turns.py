"""``torana turns``: what became of messages, and running or stopping them by hand."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import typer

from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import the_gateway
from torana.cli.terminal import on_one_line, print_fields, print_rows
from torana.config import Settings
from torana.errors import OperatorError
from torana.messages import EVERYONE, Turn, TurnState
from torana.store import turns as rows
from torana.store.backup import DATABASE_NAME
from torana.store.reading import read_database

app = typer.Typer(help="List, show, retry and cancel turns.", no_args_is_help=True)

_TurnId = Annotated[str, typer.Argument(help="The turn's id, such as turn_0198….")]
_SHOWN = 60


@app.command("list")
def list_(
    state: Annotated[TurnState | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the newest turns, with how those that failed did so."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.newest, owner=EVERYONE, state=state, limit=limit)
    found = read_database(settings.data_dir / DATABASE_NAME, work)
    if as_json:
        typer.echo(json.dumps({"items": [_record(turn) for turn in found]}, indent=2))
        return
    if not found:
        typer.echo("There are no such turns.")
        return
    print_rows(("turn", "state", "channel", "accepted", "message"), map(_row, found))


@app.command()
def show(
    turn_id: _TurnId, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Show one turn: the message, the answer or the failure."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.get, owner=EVERYONE, turn_id=turn_id)
    turn = read_database(settings.data_dir / DATABASE_NAME, work)
    if turn is None:
        raise OperatorError(f"there is no turn {turn_id}; `torana turns list` names the newest")
    record = _record(turn)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    print_fields(record)


@app.command()
def retry(turn_id: _TurnId, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Run a failed turn again, at its session's tail; what it had settled is not repeated."""
    _ask(settings_from(config=config, data_dir=data_dir).settings, turn_id, "retry")


@app.command()
def cancel(turn_id: _TurnId, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Stop a turn that runs or waits."""
    _ask(settings_from(config=config, data_dir=data_dir).settings, turn_id, "cancel")


def _row(turn: Turn) -> tuple[str, ...]:
    said = turn.failure.detail if turn.failure else turn.content
    channel, message = (" ".join(text.split())[:_SHOWN] for text in (turn.channel, said))
    return turn.id, turn.state, channel, f"{turn.created_at:%Y-%m-%d %H:%M:%S}", message


def _ask(settings: Settings, turn_id: str, what: str) -> None:
    """Have the running gateway do it. Raises ``OperatorError`` where none runs or it refuses."""
    path = f"/v1/turns/{quote(turn_id, safe='')}/{what}"
    told = the_gateway(settings).ask("POST", path, read=lambda turn: f"{turn['id']} is {turn['status']}")
    typer.echo(on_one_line(told))


def _record(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "state": turn.state,
        "channel": turn.channel,
        "user": turn.user,
        "session": turn.session_id,
        "attempts": turn.attempt,
        "crashes": turn.crashes,
        "accepted": turn.created_at.isoformat(),
        "ended": turn.ended_at and turn.ended_at.isoformat(),
        "failure": turn.failure and f"{turn.failure.code}: {turn.failure.detail}",
        "content": turn.content,
        "reply": turn.reply,
    }
