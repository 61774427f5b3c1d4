"""A script tries to load programs into the kernel, and to make queues there that count for no process."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
from tests.attacks.conftest import GatewayProcess
from tests.attacks.scripts import install_script, run_script
from tests.parts import require

#: Tries each way once: thousands of filters stop a kernel.
ATTACK = """
import ctypes, errno, socket, struct

libc = ctypes.CDLL(None, use_errno=True)
# A classic BPF program of one instruction that accepts everything.
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFFFFFF))
filter = struct.pack("HL", 1, ctypes.addressof(code))

def report(name, result):
    print(name, "succeeded" if result >= 0 else errno.errorcode[ctypes.get_errno()])

for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_NETLINK):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        for option in (26, 44, 50, 51, 52):
            value = filter if option in (26, 51) else struct.pack("i", 1)
            report(f"option {option}", libc.setsockopt(one.fileno(), 1, option, value, len(value)))
report("prctl", libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0))
report("seccomp", libc.syscall(317, 1, 0, ctypes.c_char_p(filter)))
report("bpf", libc.syscall(321, 0, filter, len(filter)))
report("inotify", libc.inotify_init1(0))
report("fanotify", libc.fanotify_init(0x200, 0))
context = ctypes.c_ulong(0)
report("aio", libc.syscall(206, 128, ctypes.byref(context)))
report("landlock", libc.syscall(444, None, 0, 1))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls are for x86-64")
def test_script_cannot_use_programs_and_queues_of_the_kernel(
    new_gateway: Callable[..., GatewayProcess],
) -> None:
    require("bwrap", "bubblewrap")
    gateway = new_gateway()
    gateway.start()

    with gateway.client() as client:
        install_script(client, ATTACK)
        reply = run_script(client)

    assert "succeeded" not in reply
    options = [f"option {option} EPERM" for option in (26, 44, 50, 51, 52)]
    calls = [f"{call} EPERM" for call in ("prctl", "seccomp", "bpf", "inotify", "fanotify", "aio", "landlock")]
    assert "\n".join([*options * 3, *calls]) in reply
