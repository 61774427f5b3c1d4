"""A script writes machine code into the first process of its sandbox to make it fork without end."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
from tests.attacks.conftest import GatewayProcess
from tests.attacks.scripts import install_script, run_script
from tests.parts import require

#: Writes a loop of forks to the address where the first process continues after a child ends, and ends a child.
ATTACK = """
import os, struct, sys, time

# for r12d = 8000 … 1: fork() or break; for ever: pause()
code = b"\\x41\\xbc" + struct.pack("<I", 8000)
code += bytes.fromhex("b839000000 0f05 85c0 7405 41ffcc 75f0 b822000000 0f05 ebf7")
goes_on_at = int(open("/proc/1/syscall").read().split()[-1], 16)
try:
    with open("/proc/1/mem", "r+b", buffering=0) as memory:
        memory.seek(goes_on_at)
        memory.write(code)
except OSError as error:
    print(error.strerror)

if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.1)
    os._exit(0)
os.wait()
time.sleep(0.5)
print(len([name for name in os.listdir("/proc") if name.isdigit()]), "processes")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the machine code is for x86-64")
def test_script_cannot_make_the_first_process_fork(new_gateway: Callable[..., GatewayProcess]) -> None:
    require("bwrap", "bubblewrap")
    gateway = new_gateway()
    gateway.start()

    with gateway.client() as client:
        install_script(client, ATTACK)
        reply = run_script(client)

        assert "Read-only file system" in reply
        assert "2 processes" in reply
        assert client.get("/health").json()["status"] == "ok"
