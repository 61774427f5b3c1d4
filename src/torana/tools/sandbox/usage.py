"""Measure the resource usage of a sandbox's processes, from /proc and the file systems."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torana.tools.sandbox.job import MIB, NICENESS, SandboxLimits

#: A run is stopped when its file systems have lost this many times its limits of bytes and files. Other
#: programs write to them too, so the limits themselves would be too strict.
OTHERS = 8
#: A run is stopped above this many times its limit of processes. The kernel enforces the limit itself. The
#: factor allows for an inexact count: processes are counted one after the other.
PROCESS_FACTOR = 2

_PAGE = os.sysconf("SC_PAGESIZE")
#: The maximum bytes of a Unix socket, in multiples of its buffer: a stream socket may exceed the buffer by one
#: message, and a datagram socket (type 2) keeps messages of eleven closed senders.
_UNIX, _DATAGRAMS = 2, {b"0002": 20}
_UNIX_BYTES = 212_992
#: The machine's TCP memory below which single connections are not searched.
_TCP_THRESHOLD = 16 * MIB
#: The position of the name in a row of Unix sockets.
_NAME = 6
#: The maximum number of threads of a process that are read: by ``children``, for bubblewrap and its single
#: thread, and by the search for a thread that has not ended.
_FEW_THREADS = 16
#: The maximum number of searches for a thread that has not ended, and the size of the process if none is found.
_TRIES = 100
UNKNOWN = 2**62
#: The sandbox's own file systems, by their paths inside.
_DISKS = ("tmp", "dev/shm")
#: The fields of /proc/meminfo with memory of the kernel that belongs to no process and cannot be reclaimed.
_KERNEL_MEMORY = ("SUnreclaim", "VmallocUsed", "Percpu")


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The processes below a process, parents first, and the number of their threads."""

    processes: Sequence[int]
    threads: int


def process_tree(pid: int, *, limit: int) -> ProcessTree:
    """Return the processes below ``pid``. The walk stops when they have more than ``limit`` threads.

    The limit bounds the cost of the walk, which otherwise depends on the script.
    """
    found: dict[int, None] = {}
    threads = 0
    waiting = deque(children(pid))
    while waiting and threads <= limit:
        process = waiting.popleft()
        # A process whose parent changes during the walk may be found twice.
        if process not in found:
            found[process] = None
            own = _threads(process, limit=limit)
            threads += len(own)
            waiting += _children(own)
    return ProcessTree(tuple(found), threads)


def children(pid: int) -> list[int]:
    """Return the children of a process with few threads. Each thread has its own children."""
    return _children(_threads(pid, limit=_FEW_THREADS))


def _threads(pid: int, *, limit: int) -> list[str]:
    """Return the directories of a process's threads, at most ``limit`` + 1."""
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
    """Return the bytes of memory and page tables, counting shared memory fully for each process. Fast."""
    with suppress(PermissionError):
        return _memory_of(pid, "status", ("VmRSS", "VmPTE", "VmSwap"))
    return 0


def proportional(pid: int) -> int:
    """Return the bytes of memory and page tables, counting shared memory proportionally. Slow, but accurate.

    Without permission, as for root without the right to trace, shared memory counts fully.
    """
    try:
        shared = _memory_of(pid, "smaps_rollup", ("Pss", "SwapPss"))
    except PermissionError:
        return resident(pid)
    return shared + _memory_of(pid, "status", ("VmPTE",))


def _memory_of(pid: int, name: str, fields: Sequence[str]) -> int:
    """Return the sum of fields of a process's memory, read from a thread that has not ended.

    The first thread may end before the others. A process whose threads replace each other faster than they can
    be read has the size ``UNKNOWN``. Raises ``PermissionError``.
    """
    seen: set[str] = set()
    for _ in range(_TRIES):
        threads = _threads(pid, limit=_FEW_THREADS)
        # No new threads: the process is ending.
        if seen.issuperset(threads):
            return 0
        seen.update(threads)
        for thread in threads:
            with suppress(FileNotFoundError, ProcessLookupError):
                # ``/proc/<thread>`` is read, because the thread's directory in ``task`` lacks some files.
                if size := _sum_of_fields(Path("/proc", Path(thread).name, name), fields):
                    return size
    return UNKNOWN


def lower_session(pid: int) -> bool:
    """Give the session of a process the priority of scripts; return whether that is done.

    Where Linux groups processes by session (sched(7), autogroup), it first divides the processors between the
    sessions, and the priority of a process counts only in its own. A user may change one session in 0.1 s.
    """
    with suppress(OSError):
        if os.getsid(pid) == pid:  # before, it is in the session of its parent
            Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))
            return True
    return False


def kernel_memory() -> int:
    """Return the bytes that the kernel of the machine uses for itself, such as file locks and memory areas."""
    with suppress(OSError):
        return _sum_of_fields(Path("/proc/meminfo"), _KERNEL_MEMORY)
    return 0


def _sum_of_fields(path: Path, names: Sequence[str]) -> int:
    """Return the sum of lines such as ``VmRSS:  1024 kB`` in bytes. Missing lines count as zero."""
    # The first line of ``status`` has the name of the process, which the script chooses. Linux escapes a line
    # feed in it, but no other character at which Python splits lines, and it may be no UTF-8.
    lines = path.read_bytes().decode(errors="replace").split("\n")
    fields = (line.partition(":") for line in lines)
    return sum(int(value.split()[0]) * 1024 for name, _, value in fields if name in names)


def sockets(pid: int) -> int:
    """Return the bytes in the sockets of the process's network namespace. Slow if the machine has many.

    The system does not report Unix sockets, so each counts with its maximum.
    """
    protocols = ["udp", "udp6"]
    if _tcp_of_the_machine() > _TCP_THRESHOLD:
        protocols += ["tcp", "tcp6"]
    queues = (row[4].split(b":") for protocol in protocols for row in _rows(pid, protocol))
    held = sum(int(size, 16) for pair in queues for size in pair)
    held += sum(int(row[4]) + int(row[5]) for row in _rows(pid, "netlink"))
    return held + _unix_bytes() * sum(_DATAGRAMS.get(row[4], _UNIX) for row in _rows(pid, "unix"))


def _rows(pid: int, table: str) -> Iterator[list[bytes]]:
    """Yield the rows of a table of sockets (proc(5), ``net``) without its header."""
    with suppress(OSError), Path(f"/proc/{pid}/net/{table}").open("rb") as rows:
        for row in islice(rows, 1, None):
            fields = row.split(None, 6)
            # A socket's name may contain line ends, and the text after them is no row.
            if len(fields) > _NAME:
                yield fields


def _tcp_of_the_machine() -> int:
    with suppress(OSError):
        for line in Path("/proc/net/sockstat").read_text().splitlines():
            if line.startswith("TCP:"):
                return int(line.rpartition(" mem ")[2]) * _PAGE
    return 0


def _unix_bytes() -> int:
    # Older kernels do not show it in containers.
    with suppress(OSError):
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    return _UNIX_BYTES


def files(pid: int) -> int:
    """Return the number of files on the sandbox's own file systems. Empty files use memory too."""
    used = 0
    for disk in _DISKS:
        with suppress(OSError):
            found = os.statvfs(f"/proc/{pid}/root/{disk}")
            used += found.f_files - found.f_ffree
    return used


def bytes_written(pid: int) -> int:
    """Return the bytes that the process, and children it waited for, wrote to disks (proc(5), ``io``).

    Writes to memory, such as a tmpfs, do not count.
    """
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
    return 0


class Disks:
    """The file systems of directories, compared with their initial free space. Calls may block."""

    def __init__(self, directories: Sequence[int]) -> None:
        self._before = {directory: os.fstatvfs(directory) for directory in directories}

    def is_filling(self, limits: SandboxLimits) -> bool:
        """Return whether a file system has lost several times the space that one run may use."""
        for directory, before in self._before.items():
            with suppress(OSError):
                now = os.fstatvfs(directory)
                taken = (before.f_bfree - now.f_bfree) * now.f_frsize
                made = before.f_ffree - now.f_ffree
                if taken > OTHERS * limits.disk or made > OTHERS * limits.files:
                    return True
        return False
