"""A job for the sandbox: its command, limits and outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MIB = 1024 * 1024
#: Added to the gateway's niceness. With a much higher value, scripts would get no time on a busy machine.
NICENESS = 10

#: The limit at which a run was stopped. ``written`` is the data written to writable directories, and ``filled``
#: is the loss of free space on their disks.
Stopped = Literal["time", "memory", "kernel", "processes", "output", "files", "written", "filled"]


#: The bytes of an epoll watch in the kernel, and the maximum number of a user's watches (epoll(7)).
_WATCH, _MAX_WATCHES = 184, Path("/proc/sys/fs/epoll/max_user_watches")


def _kernel_limit() -> int:
    """Return half of the kernel's memory for the epoll watches of a user, at most 512 MiB.

    The gateway may run as the same user, and ends if it gets no watch.
    """
    with suppress(OSError):
        return min(512 * MIB, int(_MAX_WATCHES.read_text()) * _WATCH // 2)
    return 512 * MIB


class SandboxFault(Exception):
    """The sandbox is not available or cannot be set up. The message gives the reason and the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of one run. Sizes are in bytes."""

    seconds: float = 30.0
    #: The memory limit for each process, and for all processes together.
    memory: int = 512 * MIB
    #: The growth of the kernel's own memory during the run. The system reports it for the whole machine.
    kernel: int = field(default_factory=_kernel_limit)
    processes: int = 64
    #: The limit for the private temporary directory, for each file, and for all data written to writable
    #: directories.
    disk: int = 64 * MIB
    #: The maximum number of files in the private temporary directory.
    files: int = 10_000
    #: The bytes of each output that are returned, and the size of both outputs at which the run is stopped.
    output: int = 64 * 1024
    flood: int = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command, and everything that it may see and reach."""

    #: Writes the files of ``/skill`` into the given empty folder, and returns the command. Called in a thread.
    prepare: Callable[[Path], Sequence[str]]
    #: The environment besides the variables that the sandbox sets.
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    stdin: bytes = field(default=b"", repr=False)
    #: Directories that are visible at their own paths.
    directories: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    #: The hosts that the job may reach, in the form of ``Needs.hosts``. An empty tuple means no network.
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    #: The exit code as in a shell: 128 plus the signal's number after a signal.
    code: int
    stopped: Stopped | None
    seconds: float
    #: The start of each output, and the total number of its bytes.
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    stdout_bytes: int
    stderr_bytes: int
    #: Each ``host:port`` of refused connections, once.
    refused: tuple[str, ...] = ()
    #: Whether the connections were closed because the process sent or received too much.
    exceeded_traffic: bool = False
