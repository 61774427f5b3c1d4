"""The commands that add libraries fit the kind of the installation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torana.installation import Installation, this_installation

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
