"""Parts of the system that tests start."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import psutil
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


def open_files_of(pid: int) -> int:
    """Return how many files a process has open.

    The gateway's list of them is closed to its own user, but since Linux 6.2 the size of the list is not.
    """
    with suppress(FileNotFoundError):
        if size := Path(f"/proc/{pid}/fd").stat().st_size:
            return size
    return psutil.Process(pid).num_fds()
