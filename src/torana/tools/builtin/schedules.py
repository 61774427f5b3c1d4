"""Reminders and recurring tasks of the turn's user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from pydantic_ai import RunContext

from torana.aio import run_uncancellable
from torana.errors import GatewayError
from torana.messages import Turn
from torana.store.engine.tokenizer import words
from torana.store.rows.schedules import ScheduleKind
from torana.tools.base import ToolContext, ToolError, ToolGroup, tool, tool_errors

#: The maximum number of schedules in a list.
_SHOWN = 50

_NOT_DELIVERED = (
    "No chat platform delivers messages of this channel: the message will appear in this conversation, "
    "for example in `torana chat`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A requested schedule: either ``at`` (one time) or ``rule`` (repeated times), in a time zone."""

    text: str
    kind: ScheduleKind
    timezone: str
    at: str | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A schedule as the user sees it: the next time and the rule in words, and an optional remark."""

    id: str
    kind: ScheduleKind
    text: str
    next: str
    rule: str | None = None
    note: str = ""


class Planner(Protocol):
    """Stores the schedules of users. Every method raises a ``GatewayError`` for an impossible request."""

    async def make(self, turn: Turn, wish: Wish, *, call: str) -> Planned:
        """Create a schedule in the channel of the turn. A repeated ``call`` returns the same schedule."""
        ...

    async def list_schedules(self, turn: Turn, *, everywhere: bool) -> Sequence[Planned]:
        """Return the schedules that have not ended, the next due first.

        With ``everywhere``, these are the user's schedules in all channels; otherwise only those of the turn's
        channel.
        """
        ...

    async def cancel(self, turn: Turn, schedule_id: str) -> None:
        """Remove the schedule with this id."""
        ...


class ScheduleTools(ToolGroup):
    """The tools of the ``reminders`` skill."""

    def __init__(self, *, planner: Planner) -> None:
        self._planner = planner

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
            await self._planner.cancel(ctx.deps.turn, meant[0].id)
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
        wish = Wish(text=text, kind=kind, at=at, rule=rule, timezone=ctx.deps.timezone.key)
        with tool_errors(GatewayError):
            made = await self._planner.make(turn, wish, call=ctx.tool_call_id or "")
        scheduled = f"Scheduled: {_describe_schedule(made)}"
        return scheduled if turn.place is not None else f"{scheduled}\n{_NOT_DELIVERED}"

    async def _list_schedules(self, ctx: RunContext[ToolContext]) -> Sequence[Planned]:
        return await self._planner.list_schedules(ctx.deps.turn, everywhere=ctx.deps.may_recall)


def _find(which: str, schedules: Sequence[Planned]) -> Sequence[Planned]:
    """Return the schedule with this id, or else those whose texts contain all of the words."""
    named = [item for item in schedules if item.id == which.strip()]
    wanted = set(words(which))
    return named or [item for item in schedules if wanted and wanted <= set(words(item.text))]


def _describe_schedule(item: Planned) -> str:
    what = "reminder" if item.kind == "remind" else "task"
    when = f"{item.next}, then {item.rule}" if item.rule else item.next
    return f"{what} “{item.text}”, {when}{f' ({item.note})' if item.note else ''}"
