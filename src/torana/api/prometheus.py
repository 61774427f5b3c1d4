"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from torana.messages import DELIVERY_STATES, TurnState
from torana.tools.mcp.supervisor import McpStatus

#: The states of deliveries that are in progress or held.
_OPEN = tuple(state for state in DELIVERY_STATES if state not in ("sent", "dropped"))


def exposition(
    *,
    turns: Mapping[str, int],
    ended: Mapping[TurnState, int],
    connectors: Sequence[Mapping[str, Any]],
    servers: Sequence[McpStatus],
) -> bytes:
    """Return the metrics of the gateway and its process.

    ``turns`` are the numbers of turns that have not ended, ``ended`` of turns that ended since the start, by
    state.
    """
    # Not the library's registry: two gateways in a process must not share counters.
    registry = CollectorRegistry()
    registry.register(
        _Families(
            [
                _turns(turns),
                _ended_turns_metric(ended),
                *_connections(connectors),
                _deliveries(connectors),
                *_servers(servers),
            ]
        )
    )
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _turns(counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily("torana_turns", "Turns that have not ended.", labels=["state"])
    for state, count in counts.items():
        family.add_metric([state], count)
    return family


def _ended_turns_metric(counts: Mapping[TurnState, int]) -> Metric:
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
        "Connections since the start, or since the account's settings changed.",
        labels=["account"],
    )
    for one in connectors:
        up.add_metric([one["account"], one["kind"]], one["state"] == "active")
        made.add_metric([one["account"]], one["connections"])
    return up, made


def _servers(servers: Sequence[McpStatus]) -> Sequence[Metric]:
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
        up.add_metric([one.server], one.state == "active")
        made.add_metric([one.server], one.connections)
        calls.add_metric([one.server, "failed"], one.failed_calls)
        calls.add_metric([one.server, "ok"], one.calls - one.failed_calls)
    return up, made, calls


def _deliveries(connectors: Sequence[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "torana_deliveries",
        "Deliveries that are in progress or held for the operator.",
        labels=["account", "state"],
    )
    for one in connectors:
        for state in _OPEN:
            family.add_metric([one["account"], state], one["deliveries"].get(state, 0))
    return family
