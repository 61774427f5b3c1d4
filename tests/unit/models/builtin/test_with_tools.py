"""The rules together with the tools that they call."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic_ai import Agent

from torana.messages import Turn
from torana.models.builtin import BuiltinModel
from torana.models.builtin.cards import Card
from torana.tools.base import ToolContext
from torana.tools.builtin.arithmetic import calculate
from torana.tools.builtin.csv_query import query_csv
from torana.tools.builtin.dates import current_time, days_between, shift_date
from torana.tools.builtin.json_query import query_json
from torana.tools.builtin.text import count_text, sort_lines, unique_lines
from torana.tools.builtin.units import convert_units

NOW = datetime(2026, 11, 20, 5, 5, tzinfo=UTC)
TURN = Turn(
    id="turn_1",
    owner="gateway",
    session_id="ses_1",
    channel="c",
    seq=1,
    principal="local",
    user=None,
    content="",
    state="running",
    attempt=1,
    created_at=NOW,
)
TABLE = "city,price\nParis,1.50\nRome,2\nParis,4"


@pytest.fixture(scope="module")
def agent() -> Agent[ToolContext, str]:
    text_tools = [count_text, sort_lines, unique_lines, query_json, query_csv]
    tools = [calculate, convert_units, current_time, days_between, shift_date, *text_tools]
    cards = (
        Card(
            slug="numbers", title="Numbers", description="Sums and units", tools=("calculate", "convert_units")
        ),
        Card(
            slug="texts", title="Texts", description="Texts", tools=tuple(tool.__name__ for tool in text_tools)
        ),
    )
    return Agent(BuiltinModel(cards=lambda: cards), tools=tools, deps_type=ToolContext)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("What is 17 % of 2,340?", "17 % of 2,340 = 397.8"),
        ("12 km in miles", "12 km = 7.45645 miles"),
        (
            "what time is it in Tokyo",
            "It is 14:05 on Friday, 20 November 2026 in Tokyo (Asia/Tokyo, UTC+09:00).",
        ),
        (
            "days until the 24th of December",
            "34 days from Friday, 20 November 2026 to Thursday, 24 December 2026.",
        ),
        (
            "what date is 3 weeks from today",
            "3 weeks after Friday, 20 November 2026 is Friday, 11 December 2026.",
        ),
        ("what day of the week is 1 May 2027", "It is Saturday, 1 May 2027."),
        ("how many words are in this text: to be or not", "1 line, 4 words, 12 characters (9 without spaces)."),
        ("sort these numbers: 10, 9, 100", "9\n10\n100"),
        ("remove duplicates: a, b, a", "a\nb"),
        ('get $.items[0].name from this JSON: {"items": [{"name": "pen"}]}', "pen"),
        (f"average price by city\n{TABLE}", "city,mean of price\nParis,2.75\nRome,2\n(2 rows)"),
        (f"rows where city = paris\n{TABLE}", "city,price\nParis,1.50\nParis,4\n(2 rows)"),
        (f"total price:\n{TABLE}", "sum of price = 7.50 (3 rows)"),
    ],
)
async def test_messages_are_answered(agent: Agent[ToolContext, str], text: str, answer: str) -> None:
    deps = ToolContext(turn=TURN, may_recall=True, timezone=ZoneInfo("Europe/Rome"), clock=lambda: NOW)
    assert (await agent.run(text, deps=deps)).output == answer
