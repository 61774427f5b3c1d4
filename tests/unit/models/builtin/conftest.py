from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic_ai.tools import ToolDefinition

from torana.models.builtin.cards import Card
from torana.models.builtin.choice import Chooser
from torana.models.builtin.readers import READERS


def defined(tool: str, description: str, **properties: str) -> ToolDefinition:
    """Return a tool whose arguments are all required."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: {"type": value} for key, value in properties.items()},
        "required": list(properties),
    }
    return ToolDefinition(name=tool, description=description, parameters_json_schema=schema)


@pytest.fixture(scope="session")
def cards() -> tuple[Card, ...]:
    return (
        Card(
            slug="calculator",
            title="Calculator",
            description="Work out sums and percentages.",
            examples=("Work it out for me", "What is 17 % of 2,340?"),
            tools=("calculate",),
        ),
        Card(
            slug="csv-query",
            title="CSV queries",
            description="Answer questions about tables.",
            examples=("What is the sum of amount in this CSV?",),
            tools=("query_csv",),
        ),
        Card(
            slug="reminders",
            title="Reminders",
            description="Reminds of something at a time, once or again and again.",
            examples=("Remind me tomorrow at 9 to call Ana",),
            tools=("schedule_once", "schedule_repeating", "list_schedules", "cancel_schedule"),
        ),
        Card(
            slug="weekly-report",
            title="Weekly report",
            description="Write the weekly report of the support team from its tickets.",
            examples=("Write the weekly report",),
        ),
    )


@pytest.fixture(scope="session")
def tools() -> Mapping[str, ToolDefinition]:
    own = [
        defined("deploy_status", "Tell the status of the last deployment."),
        defined("find_customer", "Find a customer by name.", name="string"),
        defined("open_ticket", "Open a ticket.", title="string", priority="integer"),
        defined("every_get-sum", "Add two numbers.", a="number", b="number"),
        defined("send_invoice", "Send an invoice.", number="integer"),
    ]
    return {tool.name: tool for tool in [*own, *(ToolDefinition(name=name) for name in READERS)]}


@pytest.fixture(scope="session")
def chooser(cards: tuple[Card, ...], tools: Mapping[str, ToolDefinition]) -> Iterator[Chooser]:
    chooser = Chooser(cards=cards, tools=tools)
    yield chooser
    chooser.close()
