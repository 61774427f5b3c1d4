"""The filter of system calls, executed by a small interpreter of its instructions."""

from __future__ import annotations

import struct
from errno import EAFNOSUPPORT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.tools.sandbox.seccomp import program

ALLOWED = 0x7FFF0000
SOL_SOCKET = 1
#: The constant of linux/audit.h and the numbers of calls, from the kernel's tables.
MACHINES = {
    "x86_64": (
        0xC000003E,
        {"socket": 41, "setsockopt": 54, "prctl": 157, "clone": 56, "read": 0, "openat": 257, "mmap": 9},
    ),
    "aarch64": (
        0xC00000B7,
        {"socket": 198, "setsockopt": 208, "prctl": 167, "clone": 220, "read": 63, "openat": 56, "mmap": 222},
    ),
}
FORBIDDEN = {
    "x86_64": {
        "bpf": 321,
        "seccomp": 317,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "inotify_init": 253,
        "inotify_init1": 294,
        "fanotify_init": 300,
        "io_setup": 206,
        "io_uring_setup": 425,
        "landlock_create_ruleset": 444,
        "add_key": 248,
        "memfd_create": 319,
        "memfd_secret": 447,
        "ptrace": 101,
    },
    "aarch64": {
        "bpf": 280,
        "seccomp": 277,
        "perf_event_open": 241,
        "userfaultfd": 282,
        "inotify_init1": 26,
        "fanotify_init": 262,
        "io_setup": 0,
        "io_uring_setup": 425,
        "landlock_create_ruleset": 444,
        "add_key": 217,
        "memfd_create": 279,
        "memfd_secret": 447,
        "ptrace": 117,
    },
}
BY_REFERENCE = {
    "x86_64": {"vmsplice": 278, "splice": 275, "tee": 276, "sendfile": 40},
    "aarch64": {"vmsplice": 75, "splice": 76, "tee": 77, "sendfile": 71},
}
IGNORED = {
    "x86_64": {"sync": 162, "syncfs": 306, "setsid": 112},
    "aarch64": {"sync": 81, "syncfs": 267, "setsid": 157},
}
FLUSHES = {
    "x86_64": {"fsync": 74, "fdatasync": 75, "msync": 26},
    "aarch64": {"fsync": 82, "fdatasync": 83, "msync": 227},
}
OPTIONS_OF_FILTERS = {
    "SO_ATTACH_FILTER": 26,
    "SO_LOCK_FILTER": 44,
    "SO_ATTACH_BPF": 50,
    "SO_ATTACH_REUSEPORT_CBPF": 51,
    "SO_ATTACH_REUSEPORT_EBPF": 52,
}


def verdict(
    machine: str, number: int, *arguments: int, arch: int | None = None, may_flush: bool = False
) -> int:
    """Return the filter's answer to a call: 0 if it is allowed, an errno, or -1 for an error of zero."""
    arch = MACHINES[machine][0] if arch is None else arch
    data = struct.pack("<IIQ6Q", number, arch, 0, *(*arguments, *[0] * 6)[:6])
    answer = _run(program(machine, may_flush=may_flush), data)
    if answer == ALLOWED:
        return 0
    assert answer & 0xFFFF0000 == 0x00050000
    return answer & 0xFFFF or -1


def _run(code: bytes, data: bytes) -> int:
    steps = list(struct.iter_unpack("<HBBI", code))
    loaded = position = 0
    while True:
        operation, if_true, if_false, value = steps[position]
        match operation:
            case 0x20:  # load 32 bits
                (loaded,) = struct.unpack_from("<I", data, value)
                position += 1
            case 0x06:  # return
                return value
            case 0x15 | 0x35 | 0x45:  # jump if equal, at least, any bit
                passed = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[operation]
                position += 1 + (if_true if passed else if_false)
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_are_allowed(machine: str) -> None:
    _, numbers = MACHINES[machine]

    assert verdict(machine, numbers["read"], 3) == 0
    assert verdict(machine, numbers["openat"], 3) == 0
    assert verdict(machine, numbers["socket"], 2, 1, 6) == 0
    assert verdict(machine, numbers["clone"], 0x01200011) == 0
    assert verdict(machine, numbers["prctl"], 38, 1) == 0  # PR_SET_NO_NEW_PRIVS


@pytest.mark.parametrize(("machine", "call"), [(m, call) for m, calls in FORBIDDEN.items() for call in calls])
def test_calls_that_scripts_do_not_need_are_refused(machine: str, call: str) -> None:
    assert verdict(machine, FORBIDDEN[machine][call]) == EPERM


@pytest.mark.parametrize(
    ("machine", "call"), [(m, call) for m, calls in BY_REFERENCE.items() for call in calls]
)
def test_pages_are_copied_and_not_passed_by_reference(machine: str, call: str) -> None:
    assert verdict(machine, BY_REFERENCE[machine][call], 3, 4) == EINVAL


@pytest.mark.parametrize("machine", MACHINES)
def test_disks_and_sessions_of_the_machine_are_left_alone(machine: str) -> None:
    for number in IGNORED[machine].values():
        assert verdict(machine, number) == -1
        assert verdict(machine, number, may_flush=True) == -1
    for number in FLUSHES[machine].values():
        assert verdict(machine, number, 3) == -1
        assert verdict(machine, number, 3, may_flush=True) == 0


@pytest.mark.parametrize(("machine", "option"), list(product(MACHINES, OPTIONS_OF_FILTERS)))
def test_filters_of_sockets_are_refused(machine: str, option: str) -> None:
    setsockopt, number = MACHINES[machine][1]["setsockopt"], OPTIONS_OF_FILTERS[option]

    assert verdict(machine, setsockopt, 5, SOL_SOCKET, number) == EPERM
    # The kernel reads 32 bits of level and option.
    assert verdict(machine, setsockopt, 5, 1 << 32 | SOL_SOCKET, 7 << 32 | number) == EPERM
    # TCP_LINGER2 and others have the same numbers at other levels.
    assert verdict(machine, setsockopt, 5, 6, number) == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_options_that_programs_set_are_allowed(machine: str) -> None:
    setsockopt = MACHINES[machine][1]["setsockopt"]

    for option in (2, 5, 6, 9, 10, 13, 15, 16, 20, 21):  # SO_REUSEADDR … SO_SNDTIMEO
        assert verdict(machine, setsockopt, 5, SOL_SOCKET, option) == 0
    for buffer in (7, 8):
        assert verdict(machine, setsockopt, 5, SOL_SOCKET, buffer) == -1  # success, without an effect


@pytest.mark.parametrize("machine", MACHINES)
def test_filters_of_system_calls_are_refused(machine: str) -> None:
    prctl = MACHINES[machine][1]["prctl"]

    assert verdict(machine, prctl, 22, 2) == EPERM
    assert verdict(machine, prctl, 1 << 32 | 22, 2) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_memory_that_counts_for_no_process_is_refused(machine: str) -> None:
    mmap = MACHINES[machine][1]["mmap"]
    shared, private, validated, fixed, anonymous, huge = 0x01, 0x02, 0x03, 0x10, 0x20, 0x40000

    for flags in (shared | anonymous, validated | anonymous, private | anonymous | huge, private | huge):
        assert verdict(machine, mmap, 0, 4096, 3, fixed | flags) == EPERM
    for flags in (shared, validated, private, private | anonymous):
        assert verdict(machine, mmap, 0, 4096, 3, fixed | flags) == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_replaceable_calls_have_errors_that_programs_know(machine: str) -> None:
    fallocate = {"x86_64": 285, "aarch64": 47}[machine]

    assert verdict(machine, 435) == ENOSYS  # clone3
    assert verdict(machine, fallocate) == EOPNOTSUPP
    assert verdict(machine, MACHINES[machine][1]["socket"], 40, 1) == EAFNOSUPPORT  # AF_VSOCK


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 2**32 - 1), arguments=st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_filter_answers_every_call(machine: str, number: int, arguments: list[int]) -> None:
    assert verdict(machine, number, *arguments) >= -1
    assert verdict(machine, number, *arguments, arch=0x40000003) == ENOSYS  # 32-bit calls
    assert verdict(machine, number | 0x40000000, *arguments) == ENOSYS  # x32


def test_filter_allows_all_calls_on_other_machines() -> None:
    assert program("riscv64") == bytes.fromhex("060000000000ff7f")
