"""The schedules of a turn's sender, for the agent's tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from torana.messages import Turn
from torana.schedules.service import NewSchedule, Schedules
from torana.schedules.words import describe_rule, format_moment
from torana.store.rows.schedules import Schedule
from torana.tools.builtin.schedules import Planned, Wish


class AgentSchedules:
    """Implements ``tools.schedules.Planner``.

    A schedule without a user belongs to its owner and channel, and is listed only there.
    """

    def __init__(self, *, schedules: Schedules) -> None:
        self._schedules = schedules

    async def make(self, turn: Turn, wish: Wish, *, call: str) -> Planned:
        new = NewSchedule(
            owner=turn.owner,
            user=turn.user,
            token=turn.token,
            channel=turn.channel,
            account=turn.account,
            place=turn.place,
            kind=wish.kind,
            text=wish.text,
            at=wish.at,
            rule=wish.rule,
            timezone=wish.timezone,
        )
        return _to_planned(await self._schedules.make(new, made_by=_digest(turn, wish, call)))

    async def list_schedules(self, turn: Turn, *, everywhere: bool) -> Sequence[Planned]:
        channel = None if everywhere and turn.user is not None else turn.channel
        found = await self._schedules.of_speaker(turn.owner, turn.user, channel)
        return [_to_planned(schedule) for schedule in found]

    async def cancel(self, turn: Turn, schedule_id: str) -> None:
        await self._schedules.remove(turn.owner, schedule_id)


def _digest(turn: Turn, wish: Wish, call: str) -> bytes:
    """Return a digest that identifies a repeated call. Some providers reuse call ids in each response."""
    identity = [turn.id, call, wish.kind, wish.text, wish.at, wish.rule]
    return hashlib.sha256(json.dumps(identity).encode()).digest()


def _to_planned(schedule: Schedule) -> Planned:
    due = schedule.due_at
    return Planned(
        id=schedule.id,
        kind=schedule.kind,
        text=schedule.text,
        next="paused"
        if due is None or schedule.state == "paused"
        else format_moment(due, ZoneInfo(schedule.timezone)),
        rule=describe_rule(schedule.cron) if schedule.cron else None,
        note=schedule.reason or "",
    )
