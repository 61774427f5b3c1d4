"""The workflows and the commit hooks run what the Makefile runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_workflow_runs_targets_of_the_makefile(workflow: Path) -> None:
    commands = [step["run"] for step in steps(workflow) if step.get("run", "").startswith("make ")]
    targets = {word for command in commands for word in command.split()[1:] if "=" not in word}

    assert targets
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_tests_run_on_every_supported_python() -> None:
    classifiers = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]

    assert jobs["test"]["strategy"]["matrix"]["python"] == classifiers


def test_hooks_run_the_tools_of_make_check() -> None:
    recipe = MAKEFILE.partition("\ncheck:")[2].partition("\n\n")[0]
    tools = re.findall(r"^\t\$\(BIN\)/(ruff \w+|[\w-]+)", recipe, re.MULTILINE)
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]]

    assert len(tools) > 8
    assert [tool for tool in tools if not any(entry.startswith(tool) for entry in entries)] == ["pre-commit"]
