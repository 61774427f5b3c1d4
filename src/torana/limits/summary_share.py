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

    If no turn has reported usage, the share of the summaries is unknown, and every ``percent`` but 0 allows the
    summary.
    """
    if percent == 0:
        return False
    spent = transcript.spent_tokens(connection, turn.session_id)
    summaries = spent.summaries + request.likely
    is_small = spent.turns == 0 or summaries * 100 <= percent * (spent.turns + summaries)
    return is_small and budgets.has_room(connection, turn, request)
