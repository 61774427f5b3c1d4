"""What the processes of a sandbox have in use, as /proc and the file systems tell it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from torana.tools.sandbox.job import Limits

#: How many times the bounds of one run the disks of its directories may lose: others write to them too.
OTHERS = 8

_PAGE = os.sysconf("SC_PAGESIZE")
#: The sandbox's own disks, inside.
_DISKS = ("tmp", "dev/shm")


def descendants(pid: int) -> Iterator[int]:
    """All processes below ``pid``, parents first."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """The children of a process; each of its threads has those that it started."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def resident(pid: int) -> int:
    """Bytes of memory, of which those that are shared count for each process. Quick."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def proportional(pid: int) -> int:
    """Bytes of memory, of which those that are shared count in part. Slow, and right.

    Where the system does not tell us, as it does not tell a root without the right to trace, all of them count.
    """
    with suppress(OSError):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except PermissionError:
            return resident(pid)
        return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return 0


def files(pid: int) -> int:
    """Files that the sandbox's own disks hold. Their size is bounded, but an empty file takes memory too."""
    used = 0
    for disk in _DISKS:
        with suppress(OSError):
            found = os.statvfs(f"/proc/{pid}/root/{disk}")
            used += found.f_files - found.f_ffree
    return used


def written(pid: int) -> int:
    """Bytes that the process, and the children that it waited for, wrote to disks (proc(5), ``io``).

    What is written in memory alone, such as on a tmpfs, is not among them.
    """
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
    return 0


class Disks:
    """The file systems of directories, and what was free on them at first. Its calls may block."""

    def __init__(self, directories: Sequence[int]) -> None:
        self._before = {directory: os.fstatvfs(directory) for directory in directories}

    def lost(self, limits: Limits) -> bool:
        """Whether one of them has less than before by several times what one run may take."""
        for directory, before in self._before.items():
            with suppress(OSError):
                now = os.fstatvfs(directory)
                taken = (before.f_bfree - now.f_bfree) * now.f_frsize
                made = before.f_ffree - now.f_ffree
                if taken > OTHERS * limits.disk or made > OTHERS * limits.files:
                    return True
        return False
