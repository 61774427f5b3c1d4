"""``torana schedules``: reminders and scheduled tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import typer

from torana.api.schedules import schedule_body
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import the_gateway
from torana.cli.terminal import print_fields, print_rows
from torana.errors import OperatorError
from torana.messages import EVERYONE
from torana.store import schedules as rows
from torana.store.backup import DATABASE_NAME
from torana.store.reading import read_database
from torana.store.schedules import MissedPolicy, ScheduleState

app = typer.Typer(help="List, add, pause and remove reminders and scheduled tasks.", no_args_is_help=True)

_Id = Annotated[str, typer.Argument(help="The schedule's id, such as sch_0198….")]
_SHOWN = 60


@app.command("list")
def list_(
    state: Annotated[ScheduleState | None, typer.Option(help="Only those in this state.")] = None,
    user: Annotated[str | None, typer.Option(help="Only those of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List everybody's, the newest first."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.listed, owner=EVERYONE, state=state, user=user, limit=limit)
    found = [schedule_body(schedule) for schedule in read_database(settings.data_dir / DATABASE_NAME, work)]
    if as_json:
        typer.echo(json.dumps({"items": found}, indent=2))
        return
    if not found:
        typer.echo("There are none.")
        return
    print_rows(("schedule", "state", "user", "due (UTC)", "rule", "kind", "text"), map(_row, found))


@app.command()
def show(
    schedule_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Show one: when it comes next, and why not, if so."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.get, owner=EVERYONE, schedule_id=schedule_id)
    found = read_database(settings.data_dir / DATABASE_NAME, work)
    if found is None:
        raise OperatorError(f"there is no schedule {schedule_id}; `torana schedules list` names them")
    _print(schedule_body(found), as_json=as_json)


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="What is said, or what the agent is to do.")],
    at: Annotated[str | None, typer.Option(help="Once: 2026-12-24T09:00, or “tomorrow at 9”.")] = None,
    rule: Annotated[
        str | None, typer.Option(help="Again and again: “every weekday at 17:00”, or a cron expression.")
    ] = None,
    task: Annotated[bool, typer.Option("--task", help="A message to the agent, not a reminder.")] = False,
    user: Annotated[str | None, typer.Option(help="Whose it is.")] = None,
    channel: Annotated[str | None, typer.Option(help="The channel; without it one of its own.")] = None,
    timezone: Annotated[str | None, typer.Option(help="An IANA zone; without it the gateway's.")] = None,
    missed: Annotated[
        MissedPolicy | None, typer.Option(help="What becomes of times that pass while the gateway is down.")
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Have something said at a time, or done by the agent; of the running gateway."""
    wish = {"text": text, "kind": "task" if task else "remind", "at": at, "rule": rule}
    wish |= {"userId": user, "channelId": channel, "timezone": timezone, "missed": missed}
    body = {name: value for name, value in wish.items() if value is not None}
    gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    made: dict[str, Any] = gateway.ask("POST", "/v1/schedules", read=dict, body=body)
    if as_json:
        _print(made, as_json=True)
    else:
        typer.echo(f"{made['id']} is due at {made['dueAt']}")


@app.command()
def remove(schedule_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Remove one; what it has begun goes on."""
    _ask("DELETE", schedule_id, "", config, data_dir)
    typer.echo(f"{schedule_id} is removed")


@app.command()
def pause(schedule_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Let one rest until it is resumed."""
    typer.echo(f"{schedule_id} is {_ask('POST', schedule_id, '/pause', config, data_dir)['state']}")


@app.command()
def resume(schedule_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Let one go on with its next time; what was due once meanwhile comes now."""
    typer.echo(f"{schedule_id} is due at {_ask('POST', schedule_id, '/resume', config, data_dir)['dueAt']}")


def _ask(
    method: str, schedule_id: str, what: str, config: ConfigFlag, data_dir: DataDirFlag
) -> Mapping[str, Any]:
    """The schedule, as the running gateway answers. Raises ``OperatorError`` where none runs or it refuses."""
    gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    return gateway.ask(method, f"/v1/schedules/{quote(schedule_id, safe='')}{what}", read=dict)


def _print(schedule: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(schedule, indent=2))
        return
    print_fields(schedule)


def _row(schedule: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        schedule["id"],
        schedule["state"],
        schedule["userId"] or "-",
        (schedule["dueAt"] or "-")[:16].replace("T", " "),
        schedule["rule"] or "-",
        schedule["kind"],
        " ".join(schedule["text"].split())[:_SHOWN],
    )
