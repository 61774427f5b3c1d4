"""A filter of system calls (seccomp(2), in classic BPF) that scripts do not need and an escape might use.

A forbidden call fails with an error. There are four groups:

- Kernel features that namespaces do not cover: sockets outside of network namespaces (AF_VSOCK), input to a
  terminal (TIOCSTI), keys, tracing, io_uring, mounts, and disk space without writes (fallocate).
- Programs that run in the kernel: bpf(2), filters of sockets and of system calls. No limit of a process covers
  the memory of their machine code, and some thousands of them can stop the kernel. Those of netfilter need a
  capability that a script lacks.
- Notices about the files of others, and leases on them: inotify, fanotify, F_NOTIFY and F_SETLEASE of fcntl.
- Memory that counts for no process: memfd, System V, huge pages, queues of file events (inotify, fanotify),
  asynchronous I/O, rules of Landlock, anonymous memory that processes share (after ``madvise`` it stays in
  memory, but no longer counts for the process), and pages that ``vmsplice``, ``splice``, ``tee`` and
  ``sendfile`` pass by reference: a few bytes can hold a large page. Programs copy the data if one of these four
  calls fails.

Other calls have no effect and report success, because programs do not expect an error:

- ``sync`` and its relatives write the data of the whole machine to its disks, also for a file that the script
  cannot change, and delay the commits of the gateway's database. A script with writable directories may use
  those that write one file.
- ``prctl`` with PR_SET_DUMPABLE: the gateway could no longer read what the process writes to disks.
- ``setsid``: where Linux groups processes by session (``sched_autogroup``), each session gets as much processor
  time as the gateway, however low its priority is.

Other kernel memory has a bound elsewhere:

- Descriptors of epoll, timers, signals, events and processes: the limit of open files. Descriptors in flight
  between Unix sockets: the same limit.
- The watches of epoll: the growth of the kernel's own memory, of which a run may use half of the kernel's
  share for the watches of a user (4 % of the memory), because the gateway may be the same user.
- Pipes: the kernel's share for each user (64 MiB).
- POSIX timers and queued signals: the limit of pending signals. POSIX message queues: a limit of zero.
- Locked memory, which pages of MSG_ZEROCOPY need: a limit of zero.
- Buffers of sockets and page tables: measured for each run. Requests for larger buffers have no effect.
- File locks, memory areas and the rest: the growth of the kernel's own memory is measured (``usage``).
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator, Mapping, Sequence
from errno import EAFNOSUPPORT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT

# linux/bpf_common.h and linux/seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
# struct seccomp_data. Only the lower half of a 64-bit argument is read: both machines are little-endian.
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD, _FOURTH = 0, 4, 16, 24, 32, 40

_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
#: The allowed protocols: 0 (the default; for AF_NETLINK, address queries), 1 (AF_UNIX), 6 (TCP) and 17 (UDP).
_PROTOCOLS = (0, 1, 6, 17)
#: ``_BUFFERS``, which are ignored: SO_SNDBUF and SO_RCVBUF. Forbidden: SO_ATTACH_FILTER, SO_LOCK_FILTER,
#: SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF, and SO_RESERVE_MEM.
_SOL_SOCKET, _BUFFERS, _FORBIDDEN_OPTIONS = 1, (7, 8), (26, 44, 50, 51, 52, 73)
_PR_SET_DUMPABLE, _PR_SET_SECCOMP = 4, 22
_IOCTLS = (
    *(0x5412, 0x541C),  # TIOCSTI, TIOCLINUX
    *(0x40305828, 0x4030582A, 0x40305839),  # FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE
)
_FCNTLS = (1024, 1026)  # F_SETLEASE, F_NOTIFY
#: CLONE_NEW* of linux/sched.h, except NEWTIME, which clone() does not accept.
_NEW_NAMESPACES = 0x7E020000
#: MAP_SHARED (also a bit of MAP_SHARED_VALIDATE), MAP_ANONYMOUS and MAP_HUGETLB of mmap(2).
_SHARED, _ANONYMOUS, _HUGE = 0x01, 0x20, 0x40000
#: Bit 30 marks the x32 calls of x86-64, which have other numbers.
_X32 = 0x40000000

#: For each machine its constant of linux/audit.h, and the column of the numbers below.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# The numbers of calls on x86-64 and aarch64; None where a machine has no such call.
#: Calls that are allowed or refused by their arguments.
_CALLS_BY_ARGUMENT: Mapping[str, tuple[int, int]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "setsockopt": (54, 208),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prctl": (157, 167),
    "clone": (56, 220),
    "mmap": (9, 222),
}
_FORBIDDEN: Mapping[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265),
    "unshare": (272, 97),
    "setns": (308, 268),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "seccomp": (317, 277),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "landlock_create_ruleset": (444, 444),
}
#: Calls with an error of their own, after which programs and the C library use another call.
_REPLACEABLE: Mapping[str, tuple[int, tuple[int, int]]] = {
    "clone3": (ENOSYS, (435, 435)),  # the filter can read the flags of clone(), but not of clone3()
    "fallocate": (EOPNOTSUPP, (285, 47)),  # one call could fill a disk before the next measurement
    "vmsplice": (EINVAL, (278, 75)),
    "splice": (EINVAL, (275, 76)),
    "tee": (EINVAL, (276, 77)),
    "sendfile": (EINVAL, (40, 71)),
}
#: Calls that report success without an effect; ``_FLUSHES`` only if the script has no writable directories.
_IGNORED: Mapping[str, tuple[int, int]] = {"sync": (162, 81), "syncfs": (306, 267), "setsid": (112, 157)}
_FLUSHES: Mapping[str, tuple[int, int]] = {"fsync": (74, 82), "fdatasync": (75, 83), "msync": (26, 227)}


def program(machine: str | None = None, *, may_flush: bool = False) -> bytes:
    """Return the filter for ``machine``, by default this one; for an unknown machine it allows all calls.

    With ``may_flush`` the script may write a single file to the disk.
    """
    known = _MACHINES.get(machine or platform.machine())
    ignored = _IGNORED if may_flush else {**_IGNORED, **_FLUSHES}
    return b"".join(_assemble(*known, ignored)) if known else _allow()


def _assemble(arch: int, column: int, ignored: Mapping[str, tuple[int, int]]) -> Iterator[bytes]:
    yield _step(_LOAD, _ARCH)
    yield from _unless(_EQUAL, (arch,), ENOSYS)
    yield _step(_LOAD, _NUMBER)
    yield from _when(_AT_LEAST, _X32, _answer(ENOSYS))
    for error, numbers in _REPLACEABLE.values():
        yield from _when(_EQUAL, numbers[column], _answer(error))
    for numbers in ignored.values():
        yield from _when(_EQUAL, numbers[column], _answer(0))
    for numbers in _FORBIDDEN.values():
        if (number := numbers[column]) is not None:
            yield from _when(_EQUAL, number, _answer(EPERM))
    for name, steps in _examinations():
        yield from _when(_EQUAL, _CALLS_BY_ARGUMENT[name][column], *steps, _allow())
    yield _allow()


def _examinations() -> Iterator[tuple[str, Sequence[bytes]]]:
    """Yield the steps that examine the arguments of a call, by its name."""
    kinds = [_step(_LOAD, _FIRST), *_unless(_EQUAL, _FAMILIES, EAFNOSUPPORT)]
    kinds += [_step(_LOAD, _THIRD), *_unless(_EQUAL, _PROTOCOLS, EPROTONOSUPPORT)]
    yield "socket", kinds
    yield "socketpair", kinds
    options = [step for option in _BUFFERS for step in _when(_EQUAL, option, _answer(0))]
    options += _refuse(_FORBIDDEN_OPTIONS)
    of_sockets = _when(_EQUAL, _SOL_SOCKET, _step(_LOAD, _THIRD), *options)
    yield "setsockopt", [_step(_LOAD, _SECOND), *of_sockets]
    yield "ioctl", [_step(_LOAD, _SECOND), *_refuse(_IOCTLS)]
    yield "fcntl", [_step(_LOAD, _SECOND), *_refuse(_FCNTLS)]
    dumpable = _when(_EQUAL, _PR_SET_DUMPABLE, _answer(0))
    yield "prctl", [_step(_LOAD, _FIRST), *dumpable, *_refuse((_PR_SET_SECCOMP,))]
    yield "clone", [_step(_LOAD, _FIRST), *_when(_ANY_BIT, _NEW_NAMESPACES, _answer(EPERM))]
    shared = _when(_ANY_BIT, _ANONYMOUS, *_when(_ANY_BIT, _SHARED, _answer(EPERM)))
    yield "mmap", [_step(_LOAD, _FOURTH), *_when(_ANY_BIT, _HUGE, _answer(EPERM)), *shared]


def _refuse(values: Sequence[int]) -> list[bytes]:
    """Return the steps that fail for a number among ``values``."""
    return [step for value in values for step in _when(_EQUAL, value, _answer(EPERM))]


def _when(test: int, value: int, *then: bytes) -> list[bytes]:
    """Return the steps ``then`` for a number that passes the test; others continue after them."""
    return [_step(test, value, skip_if_false=len(then)), *then]


def _unless(test: int, values: tuple[int, ...], error: int) -> list[bytes]:
    """Return the steps that fail unless the number passes the test with one of ``values``."""
    tests = [_step(test, value, skip_if_true=len(values) - i) for i, value in enumerate(values)]
    return [*tests, _answer(error)]


def _answer(error: int) -> bytes:
    return _step(_RETURN, _ERROR | error)


def _allow() -> bytes:
    return _step(_RETURN, _ALLOW)


def _step(code: int, value: int, *, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, skip_if_true, skip_if_false, value)
