"""Reminders and recurring tasks, for whoever speaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic_ai import RunContext

from torana.errors import GatewayError
from torana.messages import Turn
from torana.store.schedules import ScheduleKind
from torana.store.words import words
from torana.tools.base import ToolContext, ToolError, tool

#: Schedules that are shown at once.
_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be said or done, and when: ``at`` a time once, or by a ``rule``, in a time zone."""

    text: str
    kind: ScheduleKind
    timezone: str
    at: str | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A schedule, told to whoever made it: ``next`` is its next time in words, ``note`` what is to be said."""

    id: str
    kind: ScheduleKind
    text: str
    next: str
    rule: str | None = None
    note: str = ""


class Planner(Protocol):
    """Keeps the schedules of those who speak. Every method raises a ``GatewayError`` for what cannot be."""

    async def make(self, turn: Turn, wish: Wish, *, call: str) -> Planned:
        """Keep one that is said where the turn's message was; for the same call of the turn it is one."""
        ...

    async def listed(self, turn: Turn, *, everywhere: bool) -> Sequence[Planned]:
        """Those of the turn's speaker that have not ended, the next first; else of its channel alone."""
        ...

    async def cancel(self, turn: Turn, schedule_id: str) -> None:
        """Remove one."""
        ...


class ScheduleTools:
    """The tools of the ``reminders`` skill."""

    def __init__(self, *, planner: Planner) -> None:
        self._planner = planner

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The functions."""
        return [self.schedule_once, self.schedule_repeating, self.list_schedules, self.cancel_schedule]

    @tool(idempotent=True)
    async def schedule_once(
        self, ctx: RunContext[ToolContext], text: str, at: str, kind: Literal["remind", "task"] = "remind"
    ) -> str:
        """Remind the user of something at a time, or do something for them then.

        Args:
            text: What to remind of, such as "call Ana", or, for a task, what to do then, as a message that can
                be understood alone.
            at: A time in the user's time zone: 2026-12-24T09:00, "tomorrow at 9", "on Friday at 17:30" or "in
                20 minutes".
            kind: "remind" says the text as it is; "task" has you do then what it says.
        """
        return await self._make(ctx, text, kind, at=at)

    @tool(idempotent=True)
    async def schedule_repeating(
        self, ctx: RunContext[ToolContext], text: str, rule: str, kind: Literal["remind", "task"] = "remind"
    ) -> str:
        """Remind the user of something again and again, or do something for them each time.

        Args:
            text: What to remind of, or, for a task, what to do each time, as a message that can be understood
                alone.
            rule: When, in the user's time zone: "every weekday at 17:00", "every 2 hours", "every month on the
                1st at 9", or a cron expression such as "30 9 * * MON-FRI".
            kind: "remind" says the text as it is; "task" has you do each time what it says.
        """
        return await self._make(ctx, text, kind, rule=rule)

    @tool(idempotent=True)
    async def list_schedules(self, ctx: RunContext[ToolContext]) -> str:
        """List the user's reminders and scheduled tasks that are still to come, with their ids."""
        found = await self._listed(ctx)
        if not found:
            return "Nothing is scheduled."
        lines = [f"- {_told(item)} [{item.id}]" for item in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN} more")
        return "\n".join(lines)

    @tool(idempotent=True)
    async def cancel_schedule(self, ctx: RunContext[ToolContext], which: str) -> str:
        """Cancel one of the user's reminders or scheduled tasks.

        Args:
            which: Its id, or words that only its text holds.
        """
        found = await self._listed(ctx)
        wanted = set(words(which))
        meant = [item for item in found if item.id == which.strip()] or [
            item for item in found if wanted and wanted <= set(words(item.text))
        ]
        if not meant:
            return "Nothing like that is scheduled."
        if len(meant) > 1:
            several = "\n".join(f"- {_told(item)} [{item.id}]" for item in meant[:_SHOWN])
            raise ToolError(f"{len(meant)} are meant by that; name one by its id:\n{several}")
        try:
            await self._planner.cancel(ctx.deps.turn, meant[0].id)
        except GatewayError as error:
            raise ToolError(error.detail) from error
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
        if turn.scheduled:
            raise ToolError("What was scheduled makes no further schedules; only a person's message does.")
        wish = Wish(text=text, kind=kind, at=at, rule=rule, timezone=ctx.deps.timezone.key)
        try:
            made = await self._planner.make(turn, wish, call=ctx.tool_call_id or "")
        except GatewayError as error:
            raise ToolError(error.detail) from error
        return f"Scheduled: {_told(made)}"

    async def _listed(self, ctx: RunContext[ToolContext]) -> Sequence[Planned]:
        return await self._planner.listed(ctx.deps.turn, everywhere=ctx.deps.may_recall)


def _told(item: Planned) -> str:
    what = "reminder" if item.kind == "remind" else "task"
    when = f"{item.next}, then by `{item.rule}`" if item.rule else item.next
    return f"{what} “{item.text}”, {when}{f' ({item.note})' if item.note else ''}"
