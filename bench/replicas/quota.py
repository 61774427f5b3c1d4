"""Limit processes to a share of a processor by control groups of Linux, as containers are limited."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

#: The microseconds of the kernel's default period, which Docker and Kubernetes use.
_PERIOD = 100_000

#: The file system of control groups version 2, and the hierarchy of processors in version 1.
_VERSION_2, _VERSION_1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")


class NoQuota(Exception):
    """This process cannot create control groups that limit processors."""


@contextmanager
def limited(processes: Iterable[int], share: float) -> Generator[None]:
    """Limit each process to a share of one processor inside the block. Raises ``NoQuota``."""
    with ExitStack() as stack:
        for process in processes:
            stack.enter_context(_limited(process, share))
        yield


@contextmanager
def _limited(process: int, share: float) -> Generator[None]:
    parent = _parent()
    group = parent / f"torana-bench-{process}"
    try:
        group.mkdir()
    except OSError as error:
        raise NoQuota(str(error)) from error
    try:
        if parent == _VERSION_1:
            (group / "cpu.cfs_period_us").write_text(f"{_PERIOD}")
            (group / "cpu.cfs_quota_us").write_text(f"{int(share * _PERIOD)}")
        else:
            (group / "cpu.max").write_text(f"{int(share * _PERIOD)} {_PERIOD}")
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (parent / "cgroup.procs").write_text(member)
        group.rmdir()


def _parent() -> Path:
    """Return the control group whose children can be limited."""
    delegated = _VERSION_2 / "cgroup.subtree_control"
    if delegated.exists() and "cpu" in delegated.read_text().split():
        return _VERSION_2
    if os.access(_VERSION_1 / "cgroup.procs", os.W_OK):
        return _VERSION_1
    raise NoQuota("no writable control group limits processors")
