"""The processes in a sandbox: all are under the limits, and no script can change another process."""

from __future__ import annotations

import pytest
from tests.integration.sandbox.conftest import Gateway

BOUNDED = ("core", "data", "file size", "nice", "open files", "processes", "realtime priority")
#: Prints the number of processes and the distinct limits of all of them.
LIMITS = """
import os
pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
lines = {" ".join(line.split()[1:]) for pid in pids for line in open(f"/proc/{pid}/limits")}
print(len(pids))
print("\\n".join(sorted(lines)))
"""


@pytest.mark.parametrize("hosts", [[], ["example.com"]], ids=["without hosts", "with hosts"])
def test_every_process_has_the_limits(gateway: Gateway, hosts: list[str]) -> None:
    gateway.write(LIMITS, hosts=hosts)

    count, *limits = gateway.call().stdout.splitlines()

    # The first process and the script, and with hosts the forwarder.
    assert int(count) == 2 + len(hosts)
    assert [line for line in limits if line.startswith(BOUNDED)] == [
        "core file size 0 0 bytes",
        "data size 536870912 536870912 bytes",
        "file size 67108864 67108864 bytes",
        "nice priority 0 0",
        "open files 256 256 files",
        "processes 64 64 processes",
        "realtime priority 0 0",
    ]


def test_sessions_of_scripts_have_a_low_priority(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os, pathlib
        group = pathlib.Path("/proc/self/autogroup")
        if os.fork() == 0:
            before = os.getsid(0)
            os.setsid()  # a new session would have an ordinary priority
            print(os.getsid(0) == before, flush=True)
            os._exit(0)
        os.wait()
        while group.exists() and not group.read_text().endswith("nice 10\\n"):
            pass
        """
    )

    assert result.text == "exit code 0\nstdout:\nTrue"


def test_script_cannot_write_the_disks_of_the_machine(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import ctypes, os
        libc = ctypes.CDLL(None)
        os.sync()
        # With an effect, they would fail: there is no such file.
        print(libc.syncfs(-1), libc.fsync(-1), libc.fdatasync(-1), libc.msync(1, 1, 4))
        """
    )

    assert result.text == "exit code 0\nstdout:\n0 0 0 0"


def test_files_of_processes_are_read_only(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os
        for name in ("1/mem", "self/mem", "self/oom_score_adj", "self/comm", "self/coredump_filter"):
            try:
                os.close(os.open(f"/proc/{name}", os.O_RDWR))
                print(name)
            except OSError as error:
                print(error.strerror)
        """
    )

    assert result.stdout.splitlines() == ["Read-only file system"] * 5


def test_own_file_can_be_opened_through_its_descriptor(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os
        file = os.open("/tmp/file", os.O_WRONLY | os.O_CREAT)
        with open(f"/proc/self/fd/{file}", "w") as same:
            same.write("written")
        print(open("/tmp/file").read())
        """
    )

    assert result.text == "exit code 0\nstdout:\nwritten"


def test_processes_without_a_parent_are_reaped(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os, time
        for _ in range(200):
            if os.fork() == 0:
                if os.fork() == 0:
                    os._exit(0)
                os._exit(0)
            os.wait()
        while len([pid for pid in os.listdir("/proc") if pid.isdigit()]) > 2:
            time.sleep(0.01)
        print("reaped")
        """
    )

    assert result.text == "exit code 0\nstdout:\nreaped"


def test_signals_do_not_end_the_first_process(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os, signal
        # SIGINT ends it, behind the script.
        for number in set(signal.Signals) - {signal.SIGINT}:
            os.kill(1, number)
        print(open("/proc/1/stat").read().split()[2] in "SR")
        """
    )

    assert result.text == "exit code 0\nstdout:\nTrue"


def test_error_output_of_a_killed_script_is_unchanged(gateway: Gateway) -> None:
    result = gateway.run("import os, sys; print('own', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)")

    assert result.text == "exit code 139\nstderr:\nown"
