"""The reaper of a process that adopts orphans reaps them and is otherwise transparent."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")

#: Adopts orphans (PR_SET_CHILD_SUBREAPER), and runs the code of its argument behind the reaper.
ADOPT = """
import ctypes, os, signal, subprocess, sys, time
import psutil
from torana.cli.orphans import run_behind_reaper

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
started = os.getpid()
run_behind_reaper()
exec(sys.argv[1])
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """``start(code)`` starts a process that adopts orphans and runs the code behind the reaper."""
    with ExitStack() as stack:

        def make(code: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", ADOPT, code]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            return process

        yield make


def test_orphans_are_reaped(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start(
        """
for _ in range(5):
    subprocess.run(["sh", "-c", "sleep 0.01 &"])
while psutil.Process(started).children() != [psutil.Process()]:
    time.sleep(0.01)
print("reaped")
"""
    )

    assert process.communicate(timeout=30)[0] == "reaped\n"


def test_exit_codes_of_own_children_are_kept(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("print([subprocess.run(['sh', '-c', f'exit {code}']).returncode for code in range(20)])")

    assert process.communicate(timeout=30)[0] == f"{list(range(20))}\n"


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)]
)
def test_exit_code_of_the_child_is_returned(
    start: Callable[[str], subprocess.Popen[str]], code: str, expected: int
) -> None:
    assert start(code).wait(timeout=30) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_forwarded_once(
    start: Callable[[str], subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = start(
        f"""
signals = {{{int(number)}, signal.SIGUSR1}}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready", flush=True)
for _ in range(2):
    print(int(signal.sigwait(signals)), flush=True)
print(signal.sigpending(), flush=True)
"""
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"

    process.send_signal(number)
    assert process.stdout.readline() == f"{int(number)}\n"
    process.send_signal(signal.SIGUSR1)

    assert process.communicate(timeout=30)[0] == f"{int(signal.SIGUSR1)}\nset()\n"


def test_interrupt_of_a_terminal_arrives_once() -> None:
    here, there = pty.openpty()
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
signal.sigwait({signal.SIGINT})
# Behind the reaper, which has taken its own interrupt by now.
while "SigPnd:\\t0000000000000000" not in open(f"/proc/{started}/status").read():
    pass
print(signal.sigtimedwait({signal.SIGINT}, 0.5), flush=True)
"""
    # A session leader without a terminal takes the first one that it opens.
    line = f'exec < {os.ttyname(there)}; exec "$@"'
    command = ["/bin/sh", "-c", line, "sh", sys.executable, "-c", ADOPT, code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        os.write(here, b"\x03")

        assert process.communicate(timeout=30)[0] == "None\n"
    os.close(here)
    os.close(there)


def test_killing_the_reaper_ends_its_child(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("print('ready', flush=True); time.sleep(60)")
    assert process.stdout
    assert process.stdout.readline() == "ready\n"

    process.kill()

    # End of output: the other end is closed.
    assert process.stdout.readline() == ""


def test_process_that_adopts_no_orphans_starts_no_reaper() -> None:
    code = ADOPT.replace("prctl(36, 1,", "prctl(36, 0,")
    done = subprocess.run(
        [sys.executable, "-c", code, "print(os.getpid() == started)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "True\n"
