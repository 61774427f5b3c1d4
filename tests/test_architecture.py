"""Properties that the design promises for the whole code."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import torana
from torana import errors
from torana.api.problems import body_of, error_from, status_of
from torana.errors import GatewayError
from torana.messages import Failure

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SOURCE = Path(torana.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


def tree_of(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree_of(child)


KINDS = [kind for kind in tree_of(GatewayError) if kind.__module__ == errors.__name__]


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE.parent))


def test_imports_follow_the_layers() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=SOURCE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_a_code_and_a_detail(kind: type[GatewayError]) -> None:
    error = kind()
    body = body_of(error, request_id="r")

    assert 400 <= status_of(error) <= 504
    assert body["code"] == kind.code
    assert body["detail"] == " ".join((kind.__doc__ or "").split())
    assert "code" in vars(kind)
    # An error of the gateway itself, not of the request, is an internal error.
    internal = kind in (GatewayError, errors.CrashedRepeatedly) or issubclass(kind, errors.OperatorError)
    assert (body["status"] == 500) == internal


def test_error_codes_are_unique() -> None:
    codes = [kind.code for kind in tree_of(GatewayError)]

    assert sorted(set(codes)) == sorted(codes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_is_restored_from_a_stored_failure(kind: type[GatewayError]) -> None:
    again = error_from(Failure(code=kind.code, detail="as it was"))

    assert (type(again), again.detail) == (kind, "as it was")


def test_docstring_of_errors_lists_every_error() -> None:
    drawn = inspect.getdoc(errors) or ""

    assert [kind.__name__ for kind in KINDS if kind.__name__ not in drawn] == []


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(torana.__path__, prefix="torana.")
    # A migration runs inside Alembic; `__main__` is the command line.
    return [
        importlib.import_module(m.name)
        for m in found
        if ".migrations." not in m.name and "__main__" not in m.name
    ]


def test_exports_are_sorted_and_defined() -> None:
    for module in modules():
        names = getattr(module, "__all__", [])
        assert list(names) == sorted(names, key=export_order), module.__name__
        assert [name for name in names if not hasattr(module, name)] == [], module.__name__


def export_order(name: str) -> tuple[bool, bool, str]:
    """Sort constants, then classes, then functions, as the linter does."""
    return not name.isupper(), not name[0].isupper(), name


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines without inner functions, which are measured separately."""
    inner = [node for node in ast.walk(function) if isinstance(node, FUNCTIONS)]
    lines = {line for node in inner[1:] for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    return (function.end_lineno or 0) - function.lineno + 1 - len(lines)


def test_modules_and_functions_have_docstrings_and_stay_within_their_size() -> None:
    found: list[str] = []
    for path in MODULES:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        if not ast.get_docstring(tree):
            found.append(f"{name_of(path)} has no docstring")
        # A migration is written once, and only a machine reads it.
        if "migrations" in path.parts:
            continue
        if len(text.splitlines()) > 600:
            found.append(f"{name_of(path)} has more than 600 lines")
        found += [
            f"{name_of(path)}: {node.name} has more than 60 lines"
            for node in ast.walk(tree)
            if isinstance(node, FUNCTIONS)
            and (node.end_lineno or 0) - node.lineno >= 60
            and own_lines(node) > 60
        ]

    assert found == []
