"""Reminders and recurring tasks of the turn's user."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic_ai import RunContext

from torana.aio import run_uncancellable
from torana.errors import GatewayError
from torana.schedules.service import NewSchedule, Schedules
from torana.schedules.words import describe_rule, format_moment
from torana.store.engine.tokenizer import words
from torana.store.rows.schedules import Schedule, ScheduleKind
from torana.tools.base import ToolContext, ToolError, ToolGroup, tool, tool_errors

#: The maximum number of schedules in a list.
_SHOWN = 50

_NOT_DELIVERED = (
    "No chat platform delivers messages of this channel: the message will appear in this conversation, "
    "for example in `torana chat`."
)


class ScheduleTools(ToolGroup):
    """The tools of the ``reminders`` skill.

    A schedule without a user belongs to its owner and channel, and is listed only there.
    """

    def __init__(self, *, schedules: Schedules) -> None:
        self._schedules = schedules

    @tool(idempotent=True)
    async def schedule_once(
        self, ctx: RunContext[ToolContext], text: str, at: str, kind: Literal["remind", "task"] = "remind"
    ) -> str:
        """Schedule a reminder or a task for the user, once.

        Args:
            text: What to remind of, such as "call Ana", or, for a task, what to do then, as a message that can
                be understood alone.
            at: A time in the user's time zone: 2026-12-24T09:00, "tomorrow at 9", "on Friday at 17:30" or "in
                20 minutes".
            kind: "remind" sends the text as it is; "task" gives it to you as a task at that time.
        """
        return await self._make(ctx, text, kind, at=at)

    @tool(idempotent=True)
    async def schedule_repeating(
        self, ctx: RunContext[ToolContext], text: str, rule: str, kind: Literal["remind", "task"] = "remind"
    ) -> str:
        """Schedule a repeating reminder or task for the user.

        Args:
            text: What to remind of, or, for a task, what to do each time, as a message that can be understood
                alone.
            rule: When, in the user's time zone: "every weekday at 17:00", "every 2 hours", "every month on the
                1st at 9", or a cron expression such as "30 9 * * MON-FRI".
            kind: "remind" sends the text as it is; "task" gives it to you as a task each time.
        """
        return await self._make(ctx, text, kind, rule=rule)

    @tool(idempotent=True)
    async def list_schedules(self, ctx: RunContext[ToolContext]) -> str:
        """List the user's open reminders and scheduled tasks with their ids."""
        found = await self._list_schedules(ctx)
        if not found:
            return "There are no schedules."
        lines = [f"- {_describe_schedule(item)} [{item.id}]" for item in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN} more")
        return "\n".join(lines)

    @tool(idempotent=True)
    async def cancel_schedule(self, ctx: RunContext[ToolContext], which: str) -> str:
        """Cancel one of the user's reminders or scheduled tasks.

        Args:
            which: Its id, or words that only its text contains.
        """
        found = await self._list_schedules(ctx)
        # Long texts take a second. Slots limit the threads.
        meant = await run_uncancellable(partial(_find, which, found))
        if not meant:
            return "No schedule matches that."
        if len(meant) > 1:
            several = "\n".join(f"- {_describe_schedule(item)} [{item.id}]" for item in meant[:_SHOWN])
            raise ToolError(f"{len(meant)} schedules match that; name one by its id:\n{several}")
        with tool_errors(GatewayError):
            await self._schedules.remove(ctx.deps.turn.owner, meant[0].id)
        return f"Cancelled: {meant[0].text}"

    async def _make(
        self,
        ctx: RunContext[ToolContext],
        text: str,
        kind: ScheduleKind,
        *,
        at: str | None = None,
        rule: str | None = None,
    ) -> str:
        turn = ctx.deps.turn
        if turn.is_scheduled:
            raise ToolError("A scheduled task cannot create schedules; only a user's message can.")
        new = NewSchedule(
            owner=turn.owner,
            user=turn.user,
            token=turn.token,
            channel=turn.channel,
            account=turn.account,
            place=turn.place,
            kind=kind,
            text=text,
            at=at,
            rule=rule,
            timezone=ctx.deps.timezone.key,
        )
        # Some providers reuse call ids in each response, so the id alone does not identify a repeated call.
        call = [turn.id, ctx.tool_call_id or "", kind, text, at, rule]
        made_by = hashlib.sha256(json.dumps(call).encode()).digest()
        with tool_errors(GatewayError):
            made = await self._schedules.make(new, made_by=made_by)
        scheduled = f"Scheduled: {_describe_schedule(made)}"
        return scheduled if turn.place is not None else f"{scheduled}\n{_NOT_DELIVERED}"

    async def _list_schedules(self, ctx: RunContext[ToolContext]) -> Sequence[Schedule]:
        """Return the user's open schedules: only those of this channel if it has several users."""
        turn = ctx.deps.turn
        channel = None if ctx.deps.may_recall and turn.user is not None else turn.channel
        return await self._schedules.of_speaker(turn.owner, turn.user, channel)


def _find(which: str, schedules: Sequence[Schedule]) -> Sequence[Schedule]:
    """Return the schedule with this id, or else those whose texts contain all of the words."""
    named = [item for item in schedules if item.id == which.strip()]
    wanted = set(words(which))
    return named or [item for item in schedules if wanted and wanted <= set(words(item.text))]


def _describe_schedule(item: Schedule) -> str:
    what = "reminder" if item.kind == "remind" else "task"
    when = "paused"
    if item.due_at is not None and item.state != "paused":
        when = format_moment(item.due_at, ZoneInfo(item.timezone))
    if item.cron:
        when = f"{when}, then {describe_rule(item.cron)}"
    return f"{what} “{item.text}”, {when}{f' ({item.reason})' if item.reason else ''}"
