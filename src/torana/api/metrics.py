"""How the gateway is, for Prometheus: asks those who know, at each scrape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from torana.messages import Turn, TurnState

#: Of Prometheus' text format 0.0.4 (its page "Exposition formats").
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: How a turn may end.
_ENDS: tuple[TurnState, ...] = ("completed", "failed", "cancelled")


class Metrics:
    """Gathers what ``GET /metrics`` reports.

    Labels are states, and names of accounts and kinds from the settings: never what a user said or is called.
    """

    def __init__(
        self,
        *,
        turns: Callable[[], Mapping[str, int]],
        connectors: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
        mcp: Callable[[], Sequence[Mapping[str, Any]]],
    ) -> None:
        """``turns`` are those that have not ended, by state.

        ``connectors`` is how each account stands, ``mcp`` how each MCP server.
        """
        self._turns = turns
        self._connectors = connectors
        self._mcp = mcp
        self._ended = dict.fromkeys(_ENDS, 0)

    def turn_ended(self, turn: Turn) -> None:
        """Count a turn that has ended."""
        self._ended[turn.state] = self._ended.get(turn.state, 0) + 1

    async def text(self) -> bytes:
        """All of them, in Prometheus' text format. Raises ``StoreUnavailable``."""
        # Most gateways are never asked, and need not hold Prometheus' library.
        from torana.api.exposition import exposition

        return exposition(
            turns=self._turns(), ended=self._ended, connectors=await self._connectors(), servers=self._mcp()
        )
