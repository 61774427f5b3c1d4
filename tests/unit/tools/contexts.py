"""The run context of a tool."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pydantic_ai import RunContext, RunUsage
from pydantic_ai.models.test import TestModel

from torana.messages import Turn
from torana.tools import ToolContext

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def context(user: str | None = "ana", *, may_recall: bool = True) -> RunContext[ToolContext]:
    """Return the context of a call in a turn of the user."""
    turn = Turn(
        id="turn_1",
        owner="gateway",
        session_id="ses_1",
        channel="home",
        seq=1,
        principal="local",
        user=user,
        content="hello",
        state="running",
        attempt=1,
        created_at=AT,
    )
    deps = ToolContext(turn=turn, may_recall=may_recall, timezone=ZoneInfo("UTC"), clock=lambda: AT)
    return RunContext(deps=deps, model=TestModel(), usage=RunUsage())
