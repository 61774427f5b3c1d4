"""What Prometheus is told, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from torana.messages import TurnState
from torana.store.deliveries import DELIVERY_STATES

#: How a delivery may stand that is not done with.
_OPEN = tuple(state for state in DELIVERY_STATES if state not in ("sent", "dropped"))


def exposition(
    *,
    turns: Mapping[str, int],
    ended: Mapping[TurnState, int],
    connectors: Sequence[Mapping[str, Any]],
    servers: Sequence[Mapping[str, Any]],
) -> bytes:
    """How everything stands, and how the process does.

    ``turns`` are those that have not ended, ``ended`` those that have since the start, both by state.
    """
    # Its own, and not the library's: two gateways in a process must not count together.
    registry = CollectorRegistry()
    registry.register(
        _Ours(
            [
                _turns(turns),
                _ended(ended),
                *_connections(connectors),
                _deliveries(connectors),
                *_servers(servers),
            ]
        )
    )
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Ours(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


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
