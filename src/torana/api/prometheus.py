"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from torana.measurements import LABELS, Histogram, Measurements, ModelUsage, Stage
from torana.messages import DELIVERY_STATES, TurnState
from torana.tools.mcp.supervisor import McpStatus

#: The states of deliveries that are in progress or held.
_OPEN = tuple(state for state in DELIVERY_STATES if state not in ("sent", "dropped"))

_ENDED = "Turns that ended since the start."
_OLDEST = "Wait of the oldest turn that the agent has not begun."

#: The name and the meaning of each stage's histogram.
_DURATIONS: Mapping[Stage, tuple[str, str]] = {
    "request": ("torana_http_request_duration_seconds", "HTTP requests, until the end of the response."),
    "queue": ("torana_queue_wait_seconds", "Waits of turns, from the acceptance until the agent begins."),
    "turn": ("torana_turn_duration_seconds", "Turns, from the acceptance to the end."),
    "model": ("torana_model_request_duration_seconds", "Requests to models."),
    "tool": ("torana_tool_call_duration_seconds", "Calls of tools, without the wait for approval."),
    "approval": ("torana_approval_wait_seconds", "Waits for the approval of a call."),
    "delivery": ("torana_delivery_attempt_duration_seconds", "Attempts to send a part of a reply."),
}


def exposition(
    *,
    turns: Mapping[str, int],
    ended: Mapping[TurnState, int],
    oldest_wait: float,
    measurements: Measurements,
    connectors: Sequence[Mapping[str, Any]],
    servers: Sequence[McpStatus],
    redis: bool | None = None,
) -> bytes:
    """Return the metrics of the gateway and its process.

    ``turns`` are the numbers of turns that have not ended, ``ended`` of turns that ended since the start, by
    state. ``oldest_wait`` is the wait of the oldest turn that the agent has not begun, in seconds. ``redis`` is
    whether the shared Redis server works, or None if there is no such server.
    """
    # The library's global registry is not used: two gateways in a process must not share counters.
    registry = CollectorRegistry()
    registry.register(
        _Families(
            [
                _by_state(
                    GaugeMetricFamily("torana_turns", "Turns that have not ended.", labels=["state"]), turns
                ),
                _by_state(CounterMetricFamily("torana_turns_ended", _ENDED, labels=["state"]), ended),
                GaugeMetricFamily("torana_queue_oldest_seconds", _OLDEST, value=oldest_wait),
                *_durations(measurements.durations),
                *_usage(measurements.spent),
                *_connections(connectors),
                _deliveries(connectors),
                *_servers(servers),
                *_redis(redis),
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


def _by_state(family: GaugeMetricFamily | CounterMetricFamily, counts: Mapping[Any, int]) -> Metric:
    for state, count in counts.items():
        family.add_metric([state], count)
    return family


def _durations(durations: Mapping[Stage, Mapping[tuple[str, ...], Histogram]]) -> Iterable[Metric]:
    for stage, (name, text) in _DURATIONS.items():
        family = HistogramMetricFamily(name, text, labels=LABELS[stage])
        for labels, histogram in durations[stage].items():
            family.add_metric(labels, histogram.buckets(), histogram.total)
        yield family


def _usage(spent: Mapping[str, ModelUsage]) -> Sequence[Metric]:
    tokens = CounterMetricFamily(
        "torana_model_tokens", "Tokens of model responses since the start.", labels=["model", "direction"]
    )
    cost = CounterMetricFamily(
        "torana_model_cost_usd", "Cost of model responses since the start, in dollars.", labels=["model"]
    )
    for model, used in spent.items():
        tokens.add_metric([model, "input"], used.input_tokens)
        tokens.add_metric([model, "output"], used.output_tokens)
        cost.add_metric([model], used.cost_usd)
    return tokens, cost


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


def _redis(works: bool | None) -> Sequence[Metric]:
    if works is None:
        return ()
    return (
        GaugeMetricFamily("torana_redis_up", "Whether Redis executes commands (1) or not (0).", value=works),
    )


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
