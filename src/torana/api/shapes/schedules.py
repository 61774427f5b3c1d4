"""Bodies of schedules."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, ConfigDict, Field

from torana.api.shapes.base import CLEAN, TEXT, Id, Wire
from torana.schedules.service import TEXT_LIMIT
from torana.schedules.words import WORDS_LIMIT
from torana.store.schedules import MissedPolicy, ScheduleKind, ScheduleState

_Words = Annotated[str, Field(max_length=WORDS_LIMIT, pattern=TEXT)] | None


class ScheduleRequest(Wire):
    """Something to say or do at a time, once (``at``) or by a rule. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    text: Annotated[
        str,
        Field(
            description="What is said, or what the agent is to do then.",
            min_length=1,
            max_length=TEXT_LIMIT,
            pattern=TEXT,
        ),
    ]
    kind: Annotated[
        ScheduleKind | None,
        Field(description="`remind` says the text as it is; `task` is a message to the agent."),
    ] = "remind"
    at: Annotated[
        _Words, Field(description="A time: `2026-12-24T09:00`, with an offset or without, or `tomorrow at 9`.")
    ] = None
    rule: Annotated[
        _Words, Field(description="`every weekday at 17:00`, or a cron expression: `30 9 * * MON-FRI`.")
    ] = None
    timezone: Annotated[
        Annotated[str, Field(max_length=60, pattern=CLEAN)] | None,
        Field(description="An IANA zone; without it the gateway's."),
    ] = None
    missed: Annotated[
        MissedPolicy | None,
        Field(description="What becomes of the times of a rule that passed while the gateway was down."),
    ] = "run_once"
    channel_id: Annotated[Id, Field(description="Where it is said; without it in a channel of its own.")] = None
    user_id: Annotated[Id, Field(description="Whose it is.")] = None


class ScheduleBody(Wire):
    """Something that is said or done at a time."""

    id: str
    kind: ScheduleKind
    text: str
    rule: Annotated[str | None, Field(description="A cron expression; null for what is due once.")]
    timezone: str
    missed: MissedPolicy
    state: ScheduleState
    due_at: Annotated[AwareDatetime | None, Field(description="The next time; null where none comes.")]
    reason: Annotated[
        str | None, Field(description="Why it is paused, is not fired yet, or missed its last time.")
    ]
    failures: Annotated[int, Field(description="How many of its firings failed in a row before the last one.")]
    channel_id: str
    user_id: str | None
    account: Annotated[str | None, Field(description="The chat platform's account that says it.")]
    last_due_at: Annotated[AwareDatetime | None, Field(description="The last time that was fired or missed.")]
    turn_id: Annotated[str | None, Field(description="The turn of its last firing.")]
    created_at: AwareDatetime


class SchedulesBody(Wire):
    """A page of schedules."""

    items: list[ScheduleBody]
    next: Annotated[str | None, Field(description="`after` for the next page.")]
