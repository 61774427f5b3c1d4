"""The share of a session's tokens that its summaries may use."""

from __future__ import annotations

from torana.limits.budgets import Budgets
from torana.limits.request_tokens import RequestTokens
from torana.messages import Turn
from torana.store.engine.database import Connection
from torana.store.rows import transcript


def allows_summary(
    connection: Connection, budgets: Budgets, turn: Turn, request: RequestTokens, *, percent: int
) -> bool:
    """Return whether a summary for a turn's session fits its user's limits and the share in percent.

    Without reported usage of turns the share is unknown and does not apply, unless it is 0.
    """
    if percent == 0:
        return False
    spent = transcript.spent_tokens(connection, turn.session_id)
    summaries = spent.summaries + request.likely
    is_small = spent.turns == 0 or summaries * 100 <= percent * (spent.turns + summaries)
    return is_small and budgets.has_room(connection, turn, request)
