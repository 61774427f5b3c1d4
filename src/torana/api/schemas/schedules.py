"""Bodies of schedules."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from torana.api.schemas.base import CLEAN, TEXT, Id, Page, ReadFrom, Renamed, RequestBody, Time
from torana.messages import MissedPolicy, ScheduleState
from torana.schedules.service import TEXT_LIMIT
from torana.schedules.words import WORDS_LIMIT
from torana.store.rows.schedules import ScheduleKind

#: The bounds of these fields are for the OpenAPI document; ``Schedules`` checks them.
_Text = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": TEXT_LIMIT, "pattern": TEXT})]
_Words = Annotated[str, Field(json_schema_extra={"maxLength": WORDS_LIMIT, "pattern": TEXT})]
_Zone = Annotated[str, Field(json_schema_extra={"maxLength": 60, "pattern": CLEAN})]


class ScheduleRequest(RequestBody):
    """A reminder or a task at a time (`at`) or by a rule (`rule`). Unknown fields are ignored."""

    text: Annotated[_Text, Field(description="The text of the reminder, or the task for the agent.")]
    kind: ScheduleKind | None = "remind"
    """`remind` sends the text itself; `task` sends the text to the agent as a message."""
    at: _Words | None = None
    """A time: `2026-12-24T09:00`, with or without an offset, or `tomorrow at 9`."""
    rule: _Words | None = None
    """`every weekday at 17:00`, or a cron expression: `30 9 * * MON-FRI`."""
    timezone: _Zone | None = None
    """An IANA time zone. Without it the gateway's time zone applies."""
    missed: MissedPolicy | None = "run_once"
    """The policy for runs missed while the gateway is down."""
    channel_id: Id | None = None
    """The channel. Default: a new channel for this schedule."""
    user_id: Annotated[Id | None, Field(description="The user who owns the schedule.")] = None


class ScheduleBody(Renamed):
    """A reminder or a scheduled task."""

    id: str
    kind: ScheduleKind
    text: str
    rule: Annotated[str | None, ReadFrom("cron")]
    """A cron expression; null for a schedule that is due once."""
    timezone: str
    missed: MissedPolicy
    state: ScheduleState
    due_at: Annotated[Time | None, Field(description="The next time; null if there is none.")]
    reason: str | None
    """The reason why the schedule is paused or delayed, or why its last time was missed."""
    failures: Annotated[int, Field(description="The number of consecutive failed runs before the last run.")]
    channel_id: Annotated[str, ReadFrom("channel")]
    user_id: Annotated[str | None, ReadFrom("user")]
    account: Annotated[str | None, Field(description="The connector account that sends the result.")]
    last_due_at: Annotated[Time | None, ReadFrom("dealt_with")]
    """The last time that was run or missed."""
    turn_id: Annotated[str | None, Field(description="The turn of the last run.")]
    created_at: Time


class SchedulesBody(Page[ScheduleBody]):
    """A page of schedules."""
