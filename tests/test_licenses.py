"""The table of dependencies, and the check of licenses and purposes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "licenses.py"


@pytest.fixture(scope="module")
def licenses() -> Any:
    spec = importlib.util.spec_from_file_location("licenses", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["licenses"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table(licenses: Any) -> Any:
    return licenses.Table.read(licenses.TABLE)


@pytest.fixture(scope="module")
def found(licenses: Any, table: Any) -> Any:
    return licenses.dependencies(licenses.ROOT / "pyproject.toml", table)


def test_page_is_current() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_packages_of_extras_and_of_packages_are_found(found: Any) -> None:
    installs = {one.name: one.installs for one in found}
    assert installs["fastapi"] == ("base",)
    assert installs["anthropic"] == ("anthropic",)
    assert installs["websockets"] == ("feishu", "dingtalk")
    assert installs["starlette"] == ()


@pytest.mark.parametrize(
    ("license_", "allowed"),
    [
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("", False),
        ("MIT OR GPL-3.0-only", True),
        ("Apache-2.0 AND MIT", True),
    ],
)
def test_license_that_is_not_allowed_is_reported(
    licenses: Any, table: Any, found: Any, license_: str, allowed: bool
) -> None:
    changed = [replace(one, license=license_) if one.name == "starlette" else one for one in found]
    told = licenses.problems(changed, table)
    assert [line.partition(":")[0] for line in told] == ([] if allowed else ["starlette"])


def test_missing_and_superfluous_purposes_are_reported(licenses: Any, table: Any, found: Any) -> None:
    purposes = {name: purpose for name, purpose in table.purposes.items() if name != "fastapi"}
    told = licenses.problems(found, replace(table, purposes={**purposes, "pytest": "tests"}))
    assert told == [
        "fastapi: no purpose; add it to dependencies.toml",
        "pytest: not a dependency; remove its purpose from dependencies.toml",
    ]


def test_changed_row_is_stale_and_a_measurement_is_not(licenses: Any, table: Any, found: Any) -> None:
    text = licenses.PAGE.read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| fastapi |"))
    measured = row.rpartition(" | ")[0] + " | 99.99 |"
    assert licenses.stale_rows(text.replace(row, measured), found, table) == []
    assert licenses.stale_rows(text.replace(row, row.replace("MIT", "ISC")), found, table) == ["fastapi"]
    assert licenses.stale_rows(f"{text}| pytest | MIT | 1.0 |\n", found, table) == ["pytest"]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the page lists the packages for Python 3.11")
def test_missing_row_is_stale(licenses: Any, table: Any, found: Any) -> None:
    text = licenses.PAGE.read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| fastapi |"))
    assert licenses.stale_rows(text.replace(f"{row}\n", ""), found, table) == ["fastapi"]
