"""``torana schedules``: reminders and scheduled tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import excerpt, print_list
from torana.cli.terminal import print_document, print_result
from torana.errors import OperatorError
from torana.messages import EVERYONE, MissedPolicy, ScheduleState

if TYPE_CHECKING:
    from torana.store.rows.schedules import Schedule

app = new_app(is_group=True)

_Id = Annotated[str, typer.Argument(help="The schedule's id, such as sch_0198….")]


@app.command("list")
def list_(
    options: CommonOptions,
    state: Annotated[ScheduleState | None, typer.Option(help="Only schedules in this state.")] = None,
    user: Annotated[str | None, typer.Option(help="Only schedules of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of schedules.")] = 50,
) -> None:
    """List the schedules of all users, the newest first."""
    from torana.store.rows import schedules as rows

    work = partial(rows.list_schedules, owner=EVERYONE, state=state, user=user, limit=limit)
    found = options.read_store(work)
    document = {"items": list(map(_document, found))}
    heads = ("schedule", "state", "user", "due (UTC)", "rule", "kind", "text")
    empty = "There are no schedules."
    print_list(document, heads, map(_row, found), empty=empty, texts=("text",), as_json=options.as_json)


@app.command()
def show(
    options: CommonOptions,
    schedule_id: _Id,
) -> None:
    """Show a schedule with the time of its next run, or the reason why there is none."""
    from torana.store.rows import schedules as rows

    work = partial(rows.get, owner=EVERYONE, schedule_id=schedule_id)
    found = options.read_store(work)
    if found is None:
        raise OperatorError(f"there is no schedule {schedule_id}; `torana schedules list` lists them")
    print_document(_document(found), as_json=options.as_json)


@app.command()
def add(
    options: CommonOptions,
    text: Annotated[str, typer.Argument(help="The text of the reminder, or the task for the agent.")],
    at: Annotated[
        str | None, typer.Option(help="The time of a single run: 2026-12-24T09:00, or “tomorrow at 9”.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="The times of repeated runs: “every weekday at 17:00”, or a cron expression."),
    ] = None,
    task: Annotated[
        bool, typer.Option("--task", help=("Send the text to the agent as a task instead of a reminder."))
    ] = False,
    user: Annotated[str | None, typer.Option(help="The user who owns the schedule.")] = None,
    channel: Annotated[
        str | None, typer.Option(help="The channel. Default: a new channel for this schedule.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="An IANA time zone. Default: the gateway's.")] = None,
    missed: Annotated[
        MissedPolicy | None,
        typer.Option(help="The policy for runs missed while the gateway is down. Default: run_once."),
    ] = None,
) -> None:
    """Add a reminder or a task to the running gateway."""
    fields = {"text": text, "kind": "task" if task else "remind", "at": at, "rule": rule}
    fields |= {"userId": user, "channelId": channel, "timezone": timezone, "missed": missed}
    body = {name: value for name, value in fields.items() if value is not None}
    gateway = options.gateway()
    made: dict[str, Any] = gateway.ask("POST", "/v1/schedules", read=dict, body=body)
    print_result(f"{made['id']} is due at {made['dueAt']}", made, as_json=options.as_json)


@app.command()
def remove(
    options: CommonOptions,
    schedule_id: _Id,
) -> None:
    """Remove a schedule. If the schedule has already started a turn, the turn continues."""
    removed = _ask("DELETE", schedule_id, "", options)
    print_result(f"{schedule_id} is removed", removed, as_json=options.as_json)


@app.command()
def pause(
    options: CommonOptions,
    schedule_id: _Id,
) -> None:
    """Pause a schedule until it is resumed."""
    paused = _ask("POST", schedule_id, "/pause", options)
    print_result(f"{schedule_id} is {paused['state']}", paused, as_json=options.as_json)


@app.command()
def resume(
    options: CommonOptions,
    schedule_id: _Id,
) -> None:
    """Resume a schedule. A one-off schedule that was missed runs now."""
    resumed = _ask("POST", schedule_id, "/resume", options)
    print_result(f"{schedule_id} is due at {resumed['dueAt']}", resumed, as_json=options.as_json)


@app.command()
def run(
    options: CommonOptions,
    schedule_id: _Id,
) -> None:
    """Run an active schedule now. A repeating schedule continues, and a one-off schedule ends."""
    due = _ask("POST", schedule_id, "/run", options)
    print_result(f"{schedule_id} runs now", due, as_json=options.as_json)


def _ask(method: str, schedule_id: str, action: str, options: CommonOptions) -> Mapping[str, Any]:
    """Return the schedule after a request to the gateway. Raises ``OperatorError``, also for a refusal."""
    return options.gateway().ask(method, f"/v1/schedules/{quote(schedule_id, safe='')}{action}", read=dict)


def _document(schedule: Schedule) -> Mapping[str, Any]:
    from torana.api.schemas.schedules import ScheduleBody

    return ScheduleBody.model_validate(schedule).model_dump(mode="json")


def _row(schedule: Schedule) -> tuple[str, ...]:
    return (
        schedule.id,
        schedule.state,
        schedule.user or "-",
        f"{schedule.due_at:%Y-%m-%d %H:%M}" if schedule.due_at else "-",
        schedule.cron or "-",
        schedule.kind,
        excerpt(schedule.text),
    )
