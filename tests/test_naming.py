"""Bounds on names, sizes and words that can be counted."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import torana
from torana.log_events import EVENTS

SOURCE = Path(torana.__file__).parent
ROOT = SOURCE.parents[1]
MODULES = sorted(SOURCE.rglob("*.py"))
PROSE = [*MODULES, *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]

#: Functions are named by verbs in the imperative. ``read`` and ``put`` are verbs, too.
PARTICIPLES = re.compile(
    r"_?(asked|begun|closed|done|ended|found|given|gone|granted|heard|held|kept|known|left|loaded|lost|made"
    r"|missed|named|opened|paid|said|seen|sent|settled|shown|spent|stored|taken|told|used|written)"
)
#: Names of ``torana.testing`` that tests outside of this repository use.
PUBLIC_TEST_NAMES = {"asked", "shown"}

#: The domain's object and the body of the API, or of OpenAI's API in the test server, have the same name.
TWICE = {"Call", "Page"}

RELATIVE = re.compile(r"(What|Whether|Who|Whom|Whose|Which|Where|When|How|Those|As ``|See )\b")
VAGUE = re.compile(r"\b(somebody|nobody|whoever|whom)\b", re.IGNORECASE)

FILES_PER_FOLDER = 21
METHODS_PER_CLASS = 20
ARGUMENTS_PER_CONSTRUCTOR = 8
#: All of these are `nobody`, the system user that runs scripts.
VAGUE_WORDS = 13

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module."""
    return {path: ast.parse(path.read_text("utf-8")) for path in MODULES}


def functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def classes() -> Iterator[tuple[Path, ast.ClassDef, list[Function]]]:
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield path, node, [child for child in node.body if isinstance(child, Function)]


def is_property(function: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_functions_are_not_named_by_participles() -> None:
    named = [
        f"{path.relative_to(SOURCE)}: {function.name}"
        for path, tree in trees().items()
        for function in functions(tree)
        if PARTICIPLES.fullmatch(function.name) and not is_property(function)
        if not ("testing" in path.parts and function.name in PUBLIC_TEST_NAMES)
    ]

    assert named == []


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[Path]] = defaultdict(list)
    for path, node, _ in classes():
        if not node.name.startswith("_"):
            places[node.name].append(path.relative_to(SOURCE))

    assert {name: paths for name, paths in places.items() if len(paths) > 1 and name not in TWICE} == {}


def test_classes_have_a_bounded_number_of_methods() -> None:
    large = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path, node, methods in classes()
        if len(methods) > METHODS_PER_CLASS
    ]

    assert large == []


def test_constructors_have_a_bounded_number_of_arguments() -> None:
    large = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path, node, methods in classes()
        for method in methods
        if method.name == "__init__"
        if len(method.args.args) + len(method.args.kwonlyargs) - 1 > ARGUMENTS_PER_CONSTRUCTOR
    ]

    assert large == []


def test_folders_have_a_bounded_number_of_files() -> None:
    counts: dict[Path, int] = defaultdict(int)
    for path in MODULES:
        if path.parent.name != "versions":  # each change of the database adds a migration
            counts[path.parent.relative_to(SOURCE)] += 1

    assert {folder: count for folder, count in counts.items() if count > FILES_PER_FOLDER} == {}


def test_docstrings_begin_with_a_statement() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        docstring
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, documented) and (docstring := ast.get_docstring(node))
    ]
    relative = [docstring for docstring in docstrings if RELATIVE.match(docstring)]

    assert relative == []


def test_texts_name_their_subject() -> None:
    found = {str(path.relative_to(ROOT)): len(VAGUE.findall(path.read_text("utf-8"))) for path in PROSE}

    assert sum(found.values()) < VAGUE_WORDS, {name: count for name, count in found.items() if count}


def log_calls() -> Iterator[tuple[Path, ast.Call]]:
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="_log" | "log" | "logger"), attr=level)):
                    if level in levels:
                        yield path, node
                case _:
                    pass


#: Events whose names are put together, or passed to a method that logs them.
PASSED = {"slow_connections_evicted", "too_many_connections"} | {
    f"{prefix}_{state}"
    for prefix in ("connector", "mcp_server")
    for state in ("active", "backing_off", "refused")
}


def test_every_log_call_names_a_documented_event() -> None:
    names: set[str] = set()
    for path, call in log_calls():
        event = call.args[1 if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else 0]
        if isinstance(event, ast.Constant):
            names.add(str(event.value))
        else:
            assert path.name in ("http11.py", "supervision.py"), f"{path}:{call.lineno} names no event"

    assert names | PASSED == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_event_names_are_in_snake_case(event: str) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", event)
