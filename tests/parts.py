"""Parts of the system that tests start."""

from __future__ import annotations

import os
import shutil

import pytest


def require(command: str, package: str, *, by: str = "apt install") -> str:
    """The path of a system's command; without it the test is skipped, or fails where all tests must run."""
    path = shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        reason = f"{command} is missing; install it with: {by} {package}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
