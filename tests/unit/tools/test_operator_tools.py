"""The operator's own tools, and the complete toolset."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai import FunctionToolset

from torana.errors import ConfigInvalid
from torana.memory import Memory
from torana.schedules import Schedules, ScheduleTools
from torana.sessions import Sessions
from torana.skills import CORE_DIR, Skills
from torana.store.engine.database import Database
from torana.store.workspaces import Workspaces
from torana.tools import ToolContext, promises, tool
from torana.tools.builtin.conversation import ConversationTools
from torana.tools.builtin.files import FileTools
from torana.tools.builtin.lists import ListTools
from torana.tools.builtin.memory import MemoryTools
from torana.tools.builtin.python import PythonTools
from torana.tools.builtin.skills import SkillTools
from torana.tools.builtin.web import WebTools
from torana.tools.computing import Computing
from torana.tools.operator import load_tools
from torana.tools.toolset import build_toolset

ORDERS = """\
import functools
from torana.tools import tool

@tool(idempotent=True)
def status(number: str) -> str:
    '''Say where an order is.'''
    return number

async def cancel(number: str) -> str:
    '''Cancel an order.'''
    return number

nameless = lambda: ""
partly = functools.partial(status, "7")
LIMIT = 7

class Orders:
    '''Not a function.'''
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A package of the operator on the path."""
    package = tmp_path / "their_tools"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "orders.py").write_text(ORDERS)
    (package / "broken.py").write_text("1 / 0")
    (package / "wrong.py").write_text("import os\nos.no_such_name\ndef status(): ...")
    (package / "lacking.py").write_text("import a_package_that_is_not_there")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield package
    for name in set(sys.modules) - before:
        if name.startswith("their_tools"):
            del sys.modules[name]


def names_of(functions: list[Callable[..., Any]]) -> list[str]:
    return [function.__name__ for function in functions]


def test_functions_are_loaded_in_the_configured_order() -> None:
    loaded = load_tools(["their_tools.orders:cancel", "their_tools.orders:status"])

    assert names_of(loaded) == ["cancel", "status"]
    assert [promises(function)["idempotent"] for function in loaded] == [False, True]


def test_no_names_load_no_tools() -> None:
    assert load_tools([]) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_package:status", "No module named 'no_such_package'; install it, or put it on PYTHONPATH"),
        ("their_tools.nothing:status", r"No module named 'their_tools\.nothing'; install it"),
        ("their_tools.lacking:status", "No module named 'a_package_that_is_not_there'; install it"),
        ("their_tools.orders:nothing", r"their_tools\.orders has no 'nothing'"),
        ("their_tools.orders", r"their_tools\.orders has no ''"),
        ("their_tools.orders:LIMIT", "is not a function"),
        ("their_tools.orders:Orders", "is not a function"),
        ("their_tools.orders:partly", "is not a function"),
        ("their_tools.orders:nameless", "is not a function with a name"),
        ("their_tools.broken:status", "its module failed: ZeroDivisionError"),
        ("their_tools.wrong:status", "its module failed: AttributeError.*no_such_name"),
        (":status", "its module failed: ValueError"),
    ],
)
def test_unloadable_function_is_reported_with_a_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"TORANA_TOOLS: {name}.*{reason}"):
        load_tools([name])


def offer(site: Path, entries: str) -> None:
    info = site / "their_tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torana.tools]\n{entries}\n")
    importlib.invalidate_caches()


def test_entry_points_are_loaded_after_configured_functions(package: Path) -> None:
    offer(package.parent, "b = their_tools.orders:cancel\na = their_tools.orders:status")

    assert names_of(load_tools(["their_tools.orders:cancel"])) == ["cancel", "status", "cancel"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("their_tools.broken:status", "failed: ZeroDivisionError"),
        ("their_tools.orders:LIMIT", "is not a function"),
    ],
)
def test_unloadable_entry_point_is_reported(package: Path, target: str, reason: str) -> None:
    offer(package.parent, f"bad = {target}")

    with pytest.raises(ConfigInvalid, match=f"entry point torana.tools:bad {reason}"):
        load_tools([])


@pytest.fixture
def build(
    database: Database, workspaces: Workspaces, web_tools: WebTools, computing: Computing
) -> Callable[..., FunctionToolset[ToolContext]]:
    def make(*own: Callable[..., Any]) -> FunctionToolset[ToolContext]:
        return build_toolset(
            [
                MemoryTools(memory=Memory(database=database)),
                ConversationTools(sessions=Sessions(database=database, history_messages=40)),
                SkillTools(skills=Skills(core_dir=CORE_DIR, user_dir=None, environ={})),
                ScheduleTools(schedules=cast("Schedules", None)),
                FileTools(workspaces=workspaces),
                ListTools(workspaces=workspaces, computing=computing),
                web_tools,
                PythonTools(),
            ],
            own=own,
            computing=computing,
        )

    return make


def test_tools_of_core_skills_exist(
    build: Callable[..., FunctionToolset[ToolContext]],
) -> None:
    named = {
        name
        for skill in Skills(core_dir=CORE_DIR, user_dir=None, environ={}).catalogue().loaded
        for name in skill.tools
    }

    assert named
    assert named <= set(build().tools)


def test_every_tool_describes_itself_and_its_arguments(
    build: Callable[..., FunctionToolset[ToolContext]],
) -> None:
    for name, found in build().tools.items():
        assert found.description, name
        for argument, schema in found.function_schema.json_schema.get("properties", {}).items():
            assert schema.get("description"), (name, argument)


def test_operator_tools_follow_the_core_tools(
    build: Callable[..., FunctionToolset[ToolContext]],
) -> None:
    @tool(idempotent=True)
    def order_status(number: str) -> str:
        """Say where an order is."""
        return number

    def cancel_order(number: str) -> str:
        """Cancel an order."""
        return number

    tools = build(order_status, cancel_order).tools

    assert list(tools)[-2:] == ["order_status", "cancel_order"]
    assert [tools[name].metadata for name in ("calculate", "order_status", "cancel_order")] == [
        {"idempotent": True, "permission": "allow"},
        {"idempotent": True, "permission": "allow"},
        {"idempotent": False, "permission": "allow"},
    ]


def calculate(expression: str) -> str:
    """A function with the name of a core tool."""
    return expression


def unknown(thing: NoSuchType) -> str:  # noqa: F821  # pyright: ignore
    """A function with an undefined type."""
    return ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [("calculate", "conflicts with existing tool"), ("unknown", "'NoSuchType' is not defined")],
)
def test_function_that_cannot_be_a_tool_is_reported_with_a_reason(
    build: Callable[..., FunctionToolset[ToolContext]], name: str, reason: str
) -> None:
    with pytest.raises(ConfigInvalid, match=rf"TORANA_TOOLS: {name} cannot be a tool: .*{reason}"):
        build(globals()[name])


def test_unmarked_function_is_not_idempotent() -> None:
    assert not promises(functools.partial(calculate))["idempotent"]
    assert not promises(tool(idempotent=False)(calculate))["idempotent"]
