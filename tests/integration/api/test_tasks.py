"""Sixty tasks of a model that opens the tools it needs: none is lost with the short list of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.api.conftest import Start

from torana.models.providers import open_model
from torana.testing import Answer, Call, ChatRequest, OpenAIStandIn, ScriptedModel

CSV = "city,sales,year\nParis,10,2024\nRome,20,2024\nParis,30,2025\n"
JSON = '{"items": [{"name": "pen", "price": 2}, {"name": "ink", "price": 9}], "shop": {"open": true}}'


@dataclass(frozen=True)
class Task:
    """A tool that solves the task, the skill that names the tool, and a text that the result contains."""

    skill: str
    tool: str
    arguments: Mapping[str, Any]
    result: str


TASKS = [
    Task("calculator", "calculate", {"expression": "17 % of 2340"}, "397.8"),
    Task("calculator", "calculate", {"expression": "sqrt(1764)"}, "42"),
    Task("calculator", "calculate", {"expression": "2^16"}, "65536"),
    Task("calculator", "calculate", {"expression": "80 * (1 - 0.15)"}, "68"),
    Task("calculator", "calculate", {"expression": "96.40 / 4"}, "24.1"),
    Task("calculator", "calculate", {"expression": "0.1 + 0.2"}, "0.3"),
    Task("calculator", "calculate", {"expression": "max(3, 9, 4)"}, "9"),
    Task("calculator", "calculate", {"expression": "1/0"}, "zero"),
    Task("calculator", "run_python", {"code": "sum(range(101))"}, "5050"),
    Task("calculator", "run_python", {"code": "sorted([3, 1, 2])[0]"}, "1"),
    Task("chance", "pick_random", {"options": ["pizza"]}, "pizza"),
    Task("chance", "pick_random", {"low": 7, "high": 7}, "7"),
    Task("conversation", "earlier_messages", {"about": "zebra"}, "No earlier message"),
    Task("conversation", "earlier_messages", {"speaker": "user", "order": "first"}, "task 12"),
    Task("conversation", "earlier_messages", {"about": "task 13"}, "task 13"),
    Task("csv-query", "query_csv", {"text": CSV, "aggregate": "sum", "column": "sales"}, "60"),
    Task("csv-query", "query_csv", {"text": CSV, "where": "city = Rome"}, "20"),
    Task("csv-query", "query_csv", {"text": CSV, "aggregate": "count"}, "3"),
    Task("csv-query", "query_csv", {"text": CSV, "aggregate": "max", "column": "sales"}, "30"),
    Task("csv-query", "query_csv", {"text": CSV, "select": ["year"]}, "2025"),
    Task("dates-and-times", "days_between", {"start": "2026-01-01", "end": "2026-03-01"}, "59"),
    Task("dates-and-times", "days_between", {"start": "2024-02-01", "end": "2024-03-01"}, "29"),
    Task("dates-and-times", "shift_date", {"start": "2026-01-31", "months": 1}, "28"),
    Task("dates-and-times", "shift_date", {"start": "2027-05-01"}, "Saturday"),
    Task("dates-and-times", "current_time", {"place": "Asia/Tokyo"}, "Tokyo"),
    Task("dates-and-times", "current_time", {"place": "nowhere at all"}, "nowhere at all"),
    Task("files", "write_file", {"name": "notes.txt", "text": "buy milk"}, "notes.txt"),
    Task("files", "read_file", {"name": "notes.txt"}, "buy milk"),
    Task("files", "list_files", {}, "notes.txt"),
    Task("files", "delete_file", {"name": "notes.txt"}, "notes.txt"),
    Task("files", "read_file", {"name": "notes.txt"}, "notes.txt"),
    Task("json-query", "query_json", {"text": JSON, "path": "$.items[0].name"}, "pen"),
    Task("json-query", "query_json", {"text": JSON, "path": "$..price"}, "9"),
    Task("json-query", "query_json", {"text": JSON, "path": "$.items[?@.price < 5].name"}, "pen"),
    Task("json-query", "query_json", {"text": JSON, "path": "$.shop.open"}, "true"),
    Task("json-query", "query_json", {"text": "{", "path": "$"}, "JSON"),
    Task("lists", "add_to_list", {"name": "shopping", "entries": ["milk", "eggs"]}, "milk"),
    Task("lists", "show_list", {"name": "shopping"}, "eggs"),
    Task("lists", "remove_from_list", {"name": "shopping", "entries": ["milk"]}, "milk"),
    Task("lists", "show_list", {}, "shopping"),
    Task("memory", "remember", {"text": "Ana likes green tea"}, "green tea"),
    Task("memory", "recall", {"query": "tea"}, "green tea"),
    Task("memory", "correct", {"query": "green", "text": "Ana likes black tea"}, "black tea"),
    Task("memory", "forget", {"query": "black tea"}, "black tea"),
    Task("reminders", "schedule_once", {"text": "call Ben", "at": "tomorrow at 9"}, "call Ben"),
    Task("reminders", "list_schedules", {}, "call Ben"),
    Task("reminders", "cancel_schedule", {"which": "call Ben"}, "call Ben"),
    Task("reminders", "schedule_repeating", {"text": "stretch", "rule": "every day at 8"}, "stretch"),
    Task("skill-guide", "list_skills", {}, "calculator"),
    Task("skill-guide", "load_skill", {"slug": "web"}, "web_fetch"),
    Task("text-tools", "count_text", {"text": "one two three"}, "3"),
    Task("text-tools", "count_text", {"text": "strawberry", "part": "r"}, "3"),
    Task("text-tools", "change_text", {"text": "abc", "change": "uppercase"}, "ABC"),
    Task("text-tools", "sort_lines", {"text": "b\na", "order": "ascending"}, "a\nb"),
    Task("text-tools", "unique_lines", {"text": "a\na\nb"}, "a\nb"),
    Task("unit-converter", "convert_units", {"value": 12, "from_unit": "km", "to_unit": "miles"}, "7.45"),
    Task("unit-converter", "convert_units", {"value": 100, "from_unit": "°F", "to_unit": "°C"}, "37.7"),
    Task("unit-converter", "convert_units", {"value": 2.5, "from_unit": "lb", "to_unit": "g"}, "1133"),
    Task("unit-converter", "convert_units", {"value": 3, "from_unit": "gallons", "to_unit": "litres"}, "11.3"),
    Task("web", "web_fetch", {"url": "http://127.0.0.1/"}, "public"),
]


def solve(request: ChatRequest) -> Answer:
    """Call the tool of the task; if it is not listed, load the skill that the instructions name."""
    task = TASKS[int(request.text.split()[1])]
    if request.called == [task.tool]:
        return request.results[-1]
    if task.tool in request.schemas:
        return [Call(task.tool, task.arguments)]
    if not request.called and f"- `{task.skill}`: " in str(request.messages[0]["content"]):
        return [Call("load_skill", {"slug": task.skill})]
    return "The tool is missing."


@pytest.mark.long
async def test_no_task_is_lost_with_the_short_list_of_tools(start: Start) -> None:
    with OpenAIStandIn(reply=solve) as provider:
        model = open_model(
            ["openai-chat:m"],
            environ={},
            base_url=provider.url,
            api_key=None,
            builtin=ScriptedModel,
            max_response_bytes=1_000_000,
        )
        allowed = json.dumps([{"tool": "web_fetch", "permission": "allow"}])
        _, client = await start(model, permissions=allowed)

        lost: list[str] = []
        for number, task in enumerate(TASKS):
            body = {"content": f"task {number}", "channelId": task.skill, "userId": "ana"}
            reply = (await client.post("/message", json=body)).raise_for_status().json()["reply"]
            if task.result not in reply:
                lost.append(f"{number} {task.tool}: {reply}")

        assert lost == []
        assert len(TASKS) == 60
