"""The commands that add libraries fit the kind of the installation."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torana.installation import Installation, this_installation

ROOT = Path(__file__).parents[2]
PIP = "/env/bin/python -m pip install"
WHEEL: Mapping[str, Any] = {"url": "file:///tmp/torana-0.1.0-py3-none-any.whl", "archive_info": {}}
EDITABLE: Mapping[str, Any] = {"url": "file:///home/ana/my%20torana", "dir_info": {"editable": True}}
CHECKOUT: Mapping[str, Any] = {"url": "file:///home/ana/torana", "dir_info": {}}
GIT: Mapping[str, Any] = {
    "url": "https://example.org/torana.git",
    "vcs_info": {"vcs": "git", "commit_id": "abc123"},
}


def installation(prefix: Path, origin: Mapping[str, Any] | None) -> Installation:
    return Installation(prefix=prefix, python="/env/bin/python", version="0.1.0", origin=origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (EDITABLE, f"{PIP} --editable '/home/ana/my torana[irc]'"),
        (CHECKOUT, f"{PIP} 'torana[irc] @ file:///home/ana/torana'"),
        (WHEEL, f"{PIP} 'torana[irc] @ file:///tmp/torana-0.1.0-py3-none-any.whl'"),
        (GIT, f"{PIP} 'torana[irc] @ git+https://example.org/torana.git@abc123'"),
        (None, f"{PIP} 'torana[irc]==0.1.0'"),
    ],
)
def test_extra_is_added_to_the_same_source(
    tmp_path: Path, origin: Mapping[str, Any] | None, command: str
) -> None:
    assert installation(tmp_path, origin).extra_command("irc") == command


@pytest.mark.parametrize(
    ("receipt", "extra", "package"),
    [
        (
            "uv-receipt.toml",
            "uv tool install --force 'torana[irc]==0.1.0'",
            "uv tool install --force --with 'cohere>=5' torana==0.1.0",
        ),
        (
            "pipx_metadata.json",
            "pipx install --force 'torana[irc]==0.1.0'",
            "pipx inject torana 'cohere>=5'",
        ),
    ],
)
def test_tool_is_extended_by_the_program_that_installed_it(
    tmp_path: Path, receipt: str, extra: str, package: str
) -> None:
    (tmp_path / receipt).touch()
    tool = installation(tmp_path, None)

    assert (tool.extra_command("irc"), tool.package_command("cohere>=5")) == (extra, package)


def test_package_is_added_by_pip(tmp_path: Path) -> None:
    assert installation(tmp_path, None).package_command("cohere>=5") == f"{PIP} 'cohere>=5'"


def test_this_installation_is_recognised() -> None:
    found = this_installation()

    assert (found.prefix, found.python) == (Path(sys.prefix), sys.executable)
    assert "[irc]" in found.extra_command("irc")


def test_extra_all_names_every_other_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = extras.pop("all")
    assert named == f"torana[{','.join(extras)}]"


def test_lock_of_all_extras_pins_the_tested_versions_with_hashes() -> None:
    pins, tested = (
        set(re.findall(r"^\S+==[^ ;]+", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements-all.lock", "requirements-dev.lock")
    )
    assert pins <= tested
    lock = (ROOT / "requirements-all.lock").read_text()
    assert lock.count("==") <= lock.count("--hash=sha256:")
    assert {"python-telegram-bot", "opentelemetry-sdk", "anthropic"} <= {pin.partition("==")[0] for pin in pins}
