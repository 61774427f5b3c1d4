"""A process with limits: the number of its child processes, and the cost of counting them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from torana.tools.sandbox import PROCESS_FACTOR, Outcome, SandboxLimits, job, usage
from torana.tools.sandbox.process import BoundedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

#: Starts the given numbers of sleeping processes and threads, and waits.
MANY_PROCESSES = """
import os, sys, threading, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(60)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=time.sleep, args=[60]).start()
print("started", flush=True)
time.sleep(60)
"""
#: A chain of processes, each the child of the previous one.
CHAIN = """
import os, sys, time
left = int(sys.argv[1])
while left and os.fork() == 0:
    left -= 1
time.sleep(60)
"""


async def run(*command: str, limits: SandboxLimits) -> Outcome:
    return await BoundedProcess(limits=limits).run(command, environ={}, stdin=b"", descriptors=[])


@pytest.mark.parametrize(("processes", "threads"), [(40, 0), (0, 40)], ids=["processes", "threads"])
async def test_too_many_processes_end_the_run(processes: int, threads: int) -> None:
    outcome = await run(
        # The limited process is the parent of the first process that counts.
        *("/bin/sh", "-c", '"$@"; exit', "sh"),
        *(sys.executable, "-c", MANY_PROCESSES, str(processes), str(threads)),
        limits=SandboxLimits(processes=10, files=1_000_000_000),  # includes the disks of this machine
    )

    assert outcome.stopped == "processes"


@pytest.mark.parametrize(("watches", "limit"), [("850000", 78_200_000), ("99000000", 512 * 2**20)])
def test_kernel_memory_of_a_run_is_at_most_half_of_that_for_watches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, watches: str, limit: int
) -> None:
    share = tmp_path / "max_user_watches"
    share.write_text(f"{watches}\n")
    monkeypatch.setattr(job, "_MAX_WATCHES", share)

    assert SandboxLimits().kernel == limit


async def test_failing_watcher_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def fail(pid: int, *, limit: int) -> usage.ProcessTree:
        started.append(pid)
        raise ValueError("unreadable")

    monkeypatch.setattr(usage, "process_tree", fail)

    with pytest.raises(ValueError, match="unreadable"):
        await run("/bin/sleep", "60", limits=SandboxLimits())

    assert not psutil.pid_exists(started[0])


async def test_memory_that_cannot_be_measured_in_time_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def measure(_pid: int) -> int:
        return int(ended.wait(30))

    monkeypatch.setattr(usage, "proportional", measure)
    limits = SandboxLimits(memory=64 * 1024, files=1_000_000_000)
    outcome = await run("/bin/sh", "-c", "sleep 60; exit", limits=limits)
    ended.set()

    assert outcome.stopped == "memory"


async def test_cancelled_run_leaves_no_process() -> None:
    await cancel_run("4321.7")

    assert not _sleeping("4321.7")


async def test_end_of_a_cancelled_run_is_awaited_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[threading.Thread] = []
    wait = subprocess.Popen[bytes].wait

    def note(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waiting.append(threading.current_thread())
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", note)
    await cancel_run("4321.8")

    assert waiting
    assert threading.main_thread() not in waiting


async def cancel_run(seconds: str) -> None:
    """Cancel a run of ``sleep`` when its process has started."""
    reading, writing = os.pipe()
    command = ("/bin/sh", "-c", f"echo started >/proc/self/fd/{writing}; exec /bin/sleep {seconds}")
    running = BoundedProcess(limits=SandboxLimits()).run(command, environ={}, stdin=b"", descriptors=[writing])
    task = asyncio.create_task(running)
    try:
        assert await asyncio.to_thread(os.read, reading, 7) == b"started"
    finally:
        task.cancel()
        os.close(reading)
        os.close(writing)
    with pytest.raises(asyncio.CancelledError):
        await task


def _sleeping(seconds: str) -> bool:
    return any(one.info["cmdline"] == ["/bin/sleep", seconds] for one in psutil.process_iter(["cmdline"]))


@pytest.fixture
def start() -> Iterator[Callable[..., psutil.Process]]:
    """``start(code, *arguments)`` starts Python; it and its descendants are killed at the end."""
    with ExitStack() as stack:

        def make(code: str, *arguments: str) -> psutil.Process:
            process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
            stack.callback(_kill, process)
            return psutil.Process(process.pid)

        yield make


def _kill(process: subprocess.Popen[bytes]) -> None:
    for one in psutil.Process(process.pid).children(recursive=True):
        one.kill()
    process.kill()
    process.communicate()


@pytest.mark.parametrize("code", [MANY_PROCESSES, CHAIN], ids=["siblings", "chain"])
def test_walk_through_processes_ends_at_its_limit(start: Callable[..., psutil.Process], code: str) -> None:
    process = start(code, "60", "0")
    while len(process.children(recursive=True)) < 60:
        pass

    tree = usage.process_tree(process.pid, limit=20)

    assert (len(tree.processes), tree.threads) == (21, 21)
    assert len(usage.process_tree(process.pid, limit=PROCESS_FACTOR * 60).processes) == 60
