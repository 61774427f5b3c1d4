"""Metrics for Prometheus, collected at each scrape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from torana.messages import Turn, TurnState
from torana.store.redis.server import RedisServer
from torana.tools.mcp.supervisor import McpSupervisor
from torana.turns import LiveTurns

#: The text format 0.0.4 of Prometheus (its page "Exposition formats").
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The states of ended turns.
_ENDS: tuple[TurnState, ...] = ("completed", "failed", "cancelled")


class Metrics:
    """Collects the metrics of ``GET /metrics``.

    Label values are states, routes, and names from the settings and of tools; never texts or ids of users.
    """

    def __init__(
        self,
        *,
        live: LiveTurns,
        connectors: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
        mcp: Callable[[], Iterable[McpSupervisor]],
        redis: RedisServer | None = None,
    ) -> None:
        self._live = live
        self._connectors = connectors
        self._mcp = mcp
        self._redis = redis
        self._ended = dict.fromkeys(_ENDS, 0)

    def on_turn_ended(self, turn: Turn) -> None:
        """Count a turn that has ended."""
        self._ended[turn.state] = self._ended.get(turn.state, 0) + 1

    async def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus. Raises ``StoreUnavailable``."""
        # Imported here to save memory: most gateways have no Prometheus.
        from torana.api.prometheus import exposition

        return exposition(
            turns=self._live.counts(),
            ended=self._ended,
            oldest_wait=self._live.oldest_wait(),
            measurements=self._live.measurements,
            connectors=await self._connectors(),
            servers=[one.status for one in self._mcp()],
            redis=None if self._redis is None else self._redis.works,
        )
