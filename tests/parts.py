"""Helpers for programs that tests start."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil
import pytest


def require(command: str, package: str, *, by: str = "apt install") -> str:
    """Return the path of a system command; without it, skip the test, or fail where all tests must run."""
    path = shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        end_without(command, cure=f"{by} {package}")
    return path


def end_without(part: str, *, cure: str) -> NoReturn:
    """Skip the test because a part is missing, or fail where all tests must run."""
    reason = f"{part} is missing; install it with: {cure}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def open_files_of(pid: int) -> int:
    """Return the number of open files of a process.

    The gateway hides the list of them from its own user, but since Linux 6.2 the size of the list is visible.
    """
    with suppress(FileNotFoundError):
        if size := Path(f"/proc/{pid}/fd").stat().st_size:
            return size
    return psutil.Process(pid).num_fds()
