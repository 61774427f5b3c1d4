"""The dashboard and the alert rules select series by labels and values that the metrics have."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from torana.api.prometheus import exposition
from torana.measurements import LABELS, Measurements
from torana.tools.mcp.supervisor import McpStatus

DEPLOY = Path(__file__).parents[3] / "deploy"

#: The labels of each metric, and the values of each label where these are fixed.
Labels = Mapping[str, Mapping[str, set[str]]]

#: The labels that Prometheus adds.
ADDED = {"instance", "job"}
#: Labels whose values depend on the settings and the requests.
OPEN = {"account", "kind", "method", "model", "route", "server", "tool", "le"}


@pytest.fixture(scope="module")
def labels() -> Labels:
    """The labels of a scrape in which each metric has a sample."""
    measurements = Measurements()
    for stage, names in LABELS.items():
        for status, outcome in (("2xx", "ok"), ("5xx", "failed")):
            values = {"status": status, "outcome": outcome, "state": "completed"}
            measurements.add(stage, 1.0, *(values.get(name, "x") for name in names))
    measurements.spent_by("m").add(input_tokens=1, output_tokens=1, cost_usd=1.0)
    account: dict[str, object] = {
        "account": "a",
        "kind": "irc",
        "state": "active",
        "connections": 1,
        "deliveries": {},
    }
    text = exposition(
        turns=dict.fromkeys(("running", "waiting", "queued"), 1),
        ended=dict.fromkeys(("completed", "failed", "cancelled"), 1),
        oldest_wait=1.0,
        measurements=measurements,
        connectors=[account],
        servers=[McpStatus(state="active", since=datetime.now(UTC), server="s", transport="stdio")],
    ).decode()
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        assert family.samples, family.name
        for sample in family.samples:
            values = found.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                values[name].add(value)
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield the queries of the dashboard and the alert rules: a title, the query, and the text beside it."""
    for panel in json.loads((DEPLOY / "grafana" / "torana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']}-{target['refId']}", target["expr"], target.get("legendFormat", "")
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


@pytest.mark.parametrize(
    ("expression", "text"), [pytest.param(*rest, id=title) for title, *rest in expressions()]
)
def test_expression_uses_labels_and_values_of_its_metrics(labels: Labels, expression: str, text: str) -> None:
    metrics = set(re.findall(r"\b(?:torana|process)_\w+", expression)) or {"up"}
    assert metrics <= labels.keys() | {"up"}
    known = ADDED.union(*(labels.get(metric, {}) for metric in metrics))
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {name.strip() for name in group.split(",")} <= known
    assert {*re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text)} <= known
    for metric, selector in re.findall(r"(\w+)\{([^}]*)\}", expression):
        for name, values in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            if name not in ADDED:
                assert name in labels[metric]
                assert name in OPEN or set(values.split("|")) <= labels[metric][name]
