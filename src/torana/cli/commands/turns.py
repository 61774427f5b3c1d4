"""``torana turns``: list, show, retry and cancel turns."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import excerpt, print_list
from torana.cli.terminal import print_document, print_result
from torana.errors import OperatorError
from torana.messages import EVERYONE, Turn, TurnState

app = new_app(is_group=True)

_TurnId = Annotated[str, typer.Argument(help="The turn's id, such as turn_0198….")]


@app.command("list")
def list_(
    options: CommonOptions,
    state: Annotated[TurnState | None, typer.Option(help="Only turns in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of turns.")] = 20,
) -> None:
    """List the newest turns, with the errors of failed ones."""
    from torana.store.rows.reports.turn_lists import TurnFilter, newest

    work = partial(newest, owner=EVERYONE, which=TurnFilter(state=state), limit=limit)
    found = options.read_store(work)
    heads = ["turn", "state", "channel", "accepted", "message"]
    if any(turn.failure for turn in found):
        heads.append("error")
    print_list(
        {"items": list(map(_record, found))},
        heads,
        (_row(turn)[: len(heads)] for turn in found),
        empty="There are no matching turns.",
        texts=("message", "error"),
        as_json=options.as_json,
    )


@app.command()
def show(
    options: CommonOptions,
    turn_id: _TurnId,
) -> None:
    """Show a turn: its message, and its reply or error."""
    from torana.store.rows import turns as rows

    turn = options.read_store(partial(rows.get, owner=EVERYONE, turn_id=turn_id))
    if turn is None:
        raise OperatorError(f"there is no turn {turn_id}; `torana turns list` names the newest")
    print_document(_record(turn), as_json=options.as_json)


@app.command()
def retry(
    options: CommonOptions,
    turn_id: _TurnId,
) -> None:
    """Retry a failed turn at the end of its session. Settled steps are not repeated."""
    _ask(turn_id, "retry", options)


@app.command()
def cancel(
    options: CommonOptions,
    turn_id: _TurnId,
) -> None:
    """Cancel a queued or running turn."""
    _ask(turn_id, "cancel", options)


def _row(turn: Turn) -> tuple[str, ...]:
    error = turn.failure.detail if turn.failure else "-"
    channel, message, error = map(excerpt, (turn.channel, turn.content, error))
    return turn.id, turn.state, channel, f"{turn.created_at:%Y-%m-%d %H:%M:%S}", message, error


def _ask(turn_id: str, what: str, options: CommonOptions) -> None:
    """Send the change to the running gateway. Raises ``OperatorError`` if none runs or it refuses."""
    path = f"/v1/turns/{quote(turn_id, safe='')}/{what}"
    line, turn = options.gateway().ask(
        "POST", path, read=lambda turn: (f"{turn['id']} is {turn['status']}", turn)
    )
    print_result(line, turn, as_json=options.as_json)


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
