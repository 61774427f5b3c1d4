"""``torana turns``: list, show, retry and cancel turns."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.database import read_store
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import the_gateway
from torana.cli.tables import print_rows
from torana.cli.terminal import print_fields, print_result
from torana.errors import OperatorError
from torana.messages import EVERYONE, Turn, TurnState

if TYPE_CHECKING:
    from torana.config import Settings

app = new_app(is_group=True)

_TurnId = Annotated[str, typer.Argument(help="The turn's id, such as turn_0198….")]
_SHOWN = 60


@app.command("list")
def list_(
    state: Annotated[TurnState | None, typer.Option(help="Only turns in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of turns.")] = 20,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the newest turns, with the errors of failed ones."""
    from torana.store.rows.reports.turn_lists import TurnFilter, newest

    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(newest, owner=EVERYONE, which=TurnFilter(state=state), limit=limit)
    found = read_store(settings, work)
    if as_json:
        typer.echo(json.dumps({"items": [_record(turn) for turn in found]}, indent=2))
        return
    if not found:
        typer.echo("There are no matching turns.")
        return
    heads = ["turn", "state", "channel", "accepted", "message"]
    if any(turn.failure for turn in found):
        heads.append("error")
    print_rows(heads, (_row(turn)[: len(heads)] for turn in found), texts=("message", "error"))


@app.command()
def show(
    turn_id: _TurnId, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Show a turn: its message, and its reply or error."""
    from torana.store.rows import turns as rows

    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.get, owner=EVERYONE, turn_id=turn_id)
    turn = read_store(settings, work)
    if turn is None:
        raise OperatorError(f"there is no turn {turn_id}; `torana turns list` names the newest")
    record = _record(turn)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    print_fields(record)


@app.command()
def retry(
    turn_id: _TurnId, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Retry a failed turn at the end of its session. Settled steps are not repeated."""
    _ask(settings_from(config=config, data_dir=data_dir).settings, turn_id, "retry", as_json=as_json)


@app.command()
def cancel(
    turn_id: _TurnId, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Cancel a queued or running turn."""
    _ask(settings_from(config=config, data_dir=data_dir).settings, turn_id, "cancel", as_json=as_json)


def _row(turn: Turn) -> tuple[str, ...]:
    error = turn.failure.detail if turn.failure else "-"
    texts = (turn.channel, turn.content, error)
    channel, message, error = (" ".join(text.split())[:_SHOWN] for text in texts)
    return turn.id, turn.state, channel, f"{turn.created_at:%Y-%m-%d %H:%M:%S}", message, error


def _ask(settings: Settings, turn_id: str, what: str, *, as_json: bool) -> None:
    """Send the change to the running gateway. Raises ``OperatorError`` if none runs or it refuses."""
    path = f"/v1/turns/{quote(turn_id, safe='')}/{what}"
    line, turn = the_gateway(settings).ask(
        "POST", path, read=lambda turn: (f"{turn['id']} is {turn['status']}", turn)
    )
    print_result(line, turn, as_json=as_json)


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
