"""What the processes of a sandbox have in use, as /proc and the file systems tell it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torana.tools.sandbox.job import MIB, Limits

#: How many times the bounds of one run the disks of its directories may lose: others write to them too.
OTHERS = 8
#: How many times the kernel's bound ends a run: processes that come and go are counted one after the other.
PROCESS_FACTOR = 2

_PAGE = os.sysconf("SC_PAGESIZE")
#: What one Unix socket may hold, in its own bound. The last message may go beyond it, and one of datagrams (2)
#: keeps eleven of senders that are gone.
_UNIX, _DATAGRAMS = 2, {b"0002": 20}
_UNIX_BYTES = 212_992
#: TCP of the whole machine that is not worth looking through.
_LITTLE = 16 * MIB
#: Where in a row of Unix sockets a name can stand.
_NAME = 6
#: Threads of a process whose children alone are asked for: bubblewrap has one.
_FEW_THREADS = 16
#: The sandbox's own disks, inside.
_DISKS = ("tmp", "dev/shm")


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The processes below one, parents first, and how many threads they have together."""

    processes: Sequence[int]
    threads: int


def process_tree(pid: int, *, limit: int) -> ProcessTree:
    """Return the processes below ``pid``, or the first of them that have more than ``limit`` threads together.

    The walk ends there, so that its cost is bounded by ``limit`` and not by what a script starts.
    """
    found: dict[int, None] = {}
    threads = 0
    waiting = deque(children(pid))
    while waiting and threads <= limit:
        process = waiting.popleft()
        # A process that changes its parent during the walk may be met twice.
        if process not in found:
            found[process] = None
            own = _threads(process, limit=limit)
            threads += len(own)
            waiting += _children(own)
    return ProcessTree(tuple(found), threads)


def children(pid: int) -> list[int]:
    """Return the children of a process that has few threads; each of its threads has those that it started."""
    return _children(_threads(pid, limit=_FEW_THREADS))


def _threads(pid: int, *, limit: int) -> list[str]:
    """Return the directories of a process's threads, one more than ``limit`` at most."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        return [thread.path for thread in islice(threads, limit + 1)]
    return []


def _children(threads: Iterable[str]) -> list[int]:
    found: list[int] = []
    for thread in threads:
        with suppress(OSError):
            found += map(int, Path(thread, "children").read_text().split())
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


def sockets(pid: int) -> int:
    """Bytes that the sockets of the process's network namespace hold. Slow where the machine has many.

    The system does not tell it of Unix sockets, so each counts with what it can hold at most.
    """
    protocols = ["udp", "udp6"]
    if _tcp_of_the_machine() > _LITTLE:
        protocols += ["tcp", "tcp6"]
    queues = (row[4].split(b":") for protocol in protocols for row in _rows(pid, protocol))
    held = sum(int(size, 16) for pair in queues for size in pair)
    held += sum(int(row[4]) + int(row[5]) for row in _rows(pid, "netlink"))
    return held + _unix_bytes() * sum(_DATAGRAMS.get(row[4], _UNIX) for row in _rows(pid, "unix"))


def _rows(pid: int, table: str) -> Iterator[list[bytes]]:
    """The rows of a table of sockets (proc(5), ``net``), below its head."""
    with suppress(OSError), Path(f"/proc/{pid}/net/{table}").open("rb") as rows:
        for row in islice(rows, 1, None):
            fields = row.split(None, 6)
            # A socket's name may hold line ends, behind which there is no row.
            if len(fields) > _NAME:
                yield fields


def _tcp_of_the_machine() -> int:
    with suppress(OSError):
        for line in Path("/proc/net/sockstat").read_text().splitlines():
            if line.startswith("TCP:"):
                return int(line.rpartition(" mem ")[2]) * _PAGE
    return 0


def _unix_bytes() -> int:
    # Older kernels do not tell it to containers.
    with suppress(OSError):
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    return _UNIX_BYTES


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
