"""A filter of system calls (seccomp(2), in classic BPF) that scripts do not need and an escape might use.

Namespaces do not cover these kernel features: sockets outside of network namespaces (AF_VSOCK), memory that is
not counted for a process (memfd, System V), disk space without writes (fallocate), input to a terminal
(TIOCSTI), keys, tracing, io_uring, BPF and mounts. A forbidden call fails with an error. Requests for larger
socket buffers are ignored: the memory of sockets is estimated from their number.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EAFNOSUPPORT, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT

# linux/audit.h: the architectures of the numbers below.
_X86_64, _AARCH64 = 0xC000003E, 0xC00000B7

# linux/bpf_common.h and linux/seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
# struct seccomp_data. Only the lower half of a 64-bit argument is read: both machines are little-endian.
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32

_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
#: The usual protocols, as zero or by number: TCP, UDP, and for AF_NETLINK the one of address queries.
_PROTOCOLS = (0, 1, 6, 17)
_SOL_SOCKET, _BUFFERS = 1, (7, 8)  # SO_SNDBUF, SO_RCVBUF
_IOCTLS = (
    *(0x5412, 0x541C),  # TIOCSTI, TIOCLINUX
    *(0x40305828, 0x4030582A, 0x40305839),  # FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE
)
#: CLONE_NEW* of linux/sched.h, except NEWTIME, which clone() does not accept.
_NEW_NAMESPACES = 0x7E020000
#: Bit 30 marks the x32 calls of x86-64, which have other numbers.
_X32 = 0x40000000


@dataclass(frozen=True)
class _Calls:
    arch: int
    socket: int
    socketpair: int
    setsockopt: int
    ioctl: int
    clone: int
    clone3: int
    fallocate: int
    forbidden: tuple[int, ...]


# Since Linux 5.1 new calls have the same number on all machines: io_uring, mount calls, memfd_secret …
_NEWER = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447)
_MACHINES = {
    "x86_64": _Calls(
        arch=_X86_64,
        socket=41,
        socketpair=53,
        setsockopt=54,
        ioctl=16,
        clone=56,
        clone3=435,
        fallocate=285,
        # ptrace mount umount2 pivot_root unshare setns bpf keyctl add_key request_key userfaultfd
        # perf_event_open memfd_create shmget semget msgget kexec_load process_vm_readv process_vm_writev
        # open_by_handle_at
        forbidden=(
            *(101, 165, 166, 155, 272, 308, 321, 250, 248, 249, 323, 298),
            *(319, 29, 64, 68, 246, 310, 311, 304),
            *_NEWER,
        ),
    ),
    "aarch64": _Calls(
        arch=_AARCH64,
        socket=198,
        socketpair=199,
        setsockopt=208,
        ioctl=29,
        clone=220,
        clone3=435,
        fallocate=47,
        forbidden=(
            *(117, 40, 39, 41, 97, 268, 280, 219, 217, 218, 282, 241),
            *(279, 194, 190, 186, 104, 270, 271, 265),
            *_NEWER,
        ),
    ),
}


def program(machine: str | None = None) -> bytes:
    """Return the filter for ``machine``, by default this one. For an unknown machine it allows all calls."""
    calls = _MACHINES.get(machine or platform.machine())
    return b"".join(_assemble(calls)) if calls else _allow()


def _assemble(calls: _Calls) -> Iterator[bytes]:
    yield _step(_LOAD, _ARCH)
    yield from _unless(_EQUAL, (calls.arch,), ENOSYS)
    yield _step(_LOAD, _NUMBER)
    yield from _when(_AT_LEAST, _X32, _answer(ENOSYS))
    # After ENOSYS the C library uses clone(), whose flags the filter can read.
    yield from _when(_EQUAL, calls.clone3, _answer(ENOSYS))
    # One call could fill a disk before the next measurement. After this error the C library writes zeros.
    yield from _when(_EQUAL, calls.fallocate, _answer(EOPNOTSUPP))
    for number in calls.forbidden:
        yield from _when(_EQUAL, number, _answer(EPERM))
    kinds = [_step(_LOAD, _FIRST), *_unless(_EQUAL, _FAMILIES, EAFNOSUPPORT)]
    kinds += [_step(_LOAD, _THIRD), *_unless(_EQUAL, _PROTOCOLS, EPROTONOSUPPORT), _allow()]
    for number in (calls.socket, calls.socketpair):
        yield from _when(_EQUAL, number, *kinds)
    sizes = [step for option in _BUFFERS for step in _when(_EQUAL, option, _answer(0))]
    of_sockets = _when(_EQUAL, _SOL_SOCKET, _step(_LOAD, _THIRD), *sizes)
    yield from _when(_EQUAL, calls.setsockopt, _step(_LOAD, _SECOND), *of_sockets, _allow())
    ioctls = [step for code in _IOCTLS for step in _when(_EQUAL, code, _answer(EPERM))]
    yield from _when(_EQUAL, calls.ioctl, _step(_LOAD, _SECOND), *ioctls, _allow())
    namespaces = _when(_ANY_BIT, _NEW_NAMESPACES, _answer(EPERM))
    yield from _when(_EQUAL, calls.clone, _step(_LOAD, _FIRST), *namespaces, _allow())
    yield _allow()


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
