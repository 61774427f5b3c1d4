"""How the gateway is, for Prometheus: asks those who know, at each scrape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from torana.messages import Turn, TurnState
from torana.store.deliveries import DELIVERY_STATES

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4

#: How a turn may end.
_ENDS: tuple[TurnState, ...] = ("completed", "failed", "cancelled")

#: How a delivery may stand that is not done with.
_OPEN = tuple(state for state in DELIVERY_STATES if state not in ("sent", "dropped"))


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
        # Its own, and not the library's: two gateways in a process must not count together.
        self._registry = CollectorRegistry()
        self._now = _Now()
        self._registry.register(self._now)
        self._ended = dict.fromkeys(_ENDS, 0)
        ProcessCollector(registry=self._registry)

    def turn_ended(self, turn: Turn) -> None:
        """Count a turn that has ended."""
        self._ended[turn.state] = self._ended.get(turn.state, 0) + 1

    async def text(self) -> bytes:
        """All of them, in Prometheus' text format. Raises ``StoreUnavailable``."""
        connectors = await self._connectors()
        turns = [_turns(self._turns()), _ended(self._ended)]
        self._now.families = [
            *turns,
            *_connections(connectors),
            _deliveries(connectors),
            *_servers(self._mcp()),
        ]
        return generate_latest(self._registry)


class _Now(Collector):
    """What is ours, as it was when the scrape began."""

    def __init__(self) -> None:
        self.families: Sequence[Metric] = ()

    def collect(self) -> Iterable[Metric]:
        return self.families


def _turns(counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily("torana_turns", "Turns that have not ended.", labels=["state"])
    for state, count in counts.items():
        family.add_metric([state], count)
    return family


def _ended(counts: Mapping[TurnState, int]) -> Metric:
    family = CounterMetricFamily("torana_turns_ended", "Turns that ended since the start.", labels=["state"])
    for state, count in counts.items():
        family.add_metric([state], count)
    return family


def _connections(connectors: Sequence[Mapping[str, Any]]) -> Sequence[Metric]:
    up = GaugeMetricFamily(
        "torana_connector_up", "Whether the account receives (1) or not (0).", labels=["account", "kind"]
    )
    made = CounterMetricFamily(
        "torana_connector_connections",
        "Connections that were made since the start, or since the account's settings changed.",
        labels=["account"],
    )
    for one in connectors:
        up.add_metric([one["account"], one["kind"]], one["state"] == "active")
        made.add_metric([one["account"]], one["connections"])
    return up, made


def _servers(servers: Sequence[Mapping[str, Any]]) -> Sequence[Metric]:
    up = GaugeMetricFamily(
        "torana_mcp_up", "Whether the MCP server is connected (1) or not (0).", labels=["server"]
    )
    made = CounterMetricFamily(
        "torana_mcp_connections", "Connections to the MCP server since the start.", labels=["server"]
    )
    calls = CounterMetricFamily(
        "torana_mcp_calls", "Calls of the MCP server's tools since the start.", labels=["server", "outcome"]
    )
    for one in servers:
        up.add_metric([one["server"]], one["state"] == "active")
        made.add_metric([one["server"]], one["connections"])
        calls.add_metric([one["server"], "failed"], one["failedCalls"])
        calls.add_metric([one["server"], "ok"], one["calls"] - one["failedCalls"])
    return up, made, calls


def _deliveries(connectors: Sequence[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "torana_deliveries",
        "Deliveries that are under way or wait for the operator.",
        labels=["account", "state"],
    )
    for one in connectors:
        for state in _OPEN:
            family.add_metric([one["account"], state], one["deliveries"].get(state, 0))
    return family
