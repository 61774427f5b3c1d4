"""Metrics for Prometheus, collected at each scrape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torana.messages import Turn, TurnState
from torana.store.redis.server import RedisServer
from torana.tools.mcp.supervisor import McpSupervisor
from torana.turns import LiveTurns

#: The text format 0.0.4 of Prometheus (its page "Exposition formats").
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The states of ended turns.
_ENDS: tuple[TurnState, ...] = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Collects the metrics of ``GET /metrics``.

    Label values are states, routes, and names from the settings and of tools; never texts or ids of users.
    """

    live: LiveTurns
    connectors: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]
    mcp: Callable[[], Iterable[McpSupervisor]]
    redis: RedisServer | None = None
    _ended: dict[TurnState, int] = field(default_factory=lambda: dict.fromkeys(_ENDS, 0), init=False)

    def on_turn_ended(self, turn: Turn) -> None:
        """Count a turn that has ended."""
        self._ended[turn.state] = self._ended.get(turn.state, 0) + 1

    async def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus. Raises ``StoreUnavailable``."""
        # Imported here to save memory: most gateways have no Prometheus.
        from torana.api.prometheus import exposition

        return exposition(
            turns=self.live.counts(),
            ended=self._ended,
            oldest_wait=self.live.oldest_wait(),
            measurements=self.live.measurements,
            connectors=await self.connectors(),
            servers=[one.status for one in self.mcp()],
            redis=None if self.redis is None else self.redis.works,
        )
