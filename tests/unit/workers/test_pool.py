from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import uvloop
from tests.unit.workers import jobs
from tests.waiting import eventually

from torana.workers.pool import WorkerPool
from torana.workers.worker import CallFailed, MemoryExceeded, ProcessorTimeExceeded, WorkerLost

_MEMORY = 512 * 1024 * 1024


@pytest.fixture
async def pool() -> AsyncGenerator[WorkerPool]:
    pool = WorkerPool(memory=_MEMORY)
    yield pool
    await pool.close()


@contextmanager
def inherited_file() -> Generator[None]:
    """Open a file that child processes inherit."""
    with Path(os.devnull).open() as file:
        os.set_inheritable(file.fileno(), True)
        yield


@pytest.mark.parametrize("value", ["a\nb\u2028c", "\ud800", "💥" * 100_000, {"a": [1, 2.5, None, True]}, ""])
async def test_arguments_and_results_are_json(pool: WorkerPool, value: object) -> None:
    assert await pool.run(jobs.echo, {"value": value}, seconds=5) == value


async def test_worker_is_used_again(pool: WorkerPool) -> None:
    first = await pool.run(jobs.describe, {}, seconds=5)
    with pytest.raises(CallFailed) as failed:
        await pool.run(jobs.fail, {"message": "nothing there"}, seconds=5)
    second = await pool.run(jobs.describe, {}, seconds=5)

    assert (failed.value.kind, failed.value.message) == ("LookupError", "nothing there")
    assert first["pid"] == second["pid"]


async def test_worker_inherits_nothing_from_the_gateway(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_GATEWAY_TOKEN", "secret")
    with inherited_file():
        worker = await pool.run(jobs.describe, {}, seconds=5)

    assert worker["environ"] == []
    assert worker["modules"] == []
    assert worker["session"] == worker["pid"]
    assert worker["niceness"] >= 10
    assert worker["limits"] == {"RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 64}
    # Its input, its output twice, /dev/null for errors, and the directory being read.
    assert len(worker["files"]) in (0, 5)


def test_worker_has_no_open_files_under_uvloop() -> None:
    async def look() -> int:
        pool = WorkerPool(memory=_MEMORY)
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        try:
            return len((await pool.run(jobs.describe, {}, seconds=5))["files"])
        finally:
            await pool.close()
            server.close()

    with inherited_file(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(look()) in (0, 5)


async def test_call_over_its_processor_time_is_killed_and_its_worker_replaced(pool: WorkerPool) -> None:
    before = await pool.run(jobs.describe, {}, seconds=5)
    with pytest.raises(ProcessorTimeExceeded):
        await pool.run(jobs.spin, {}, seconds=1)
    after = await pool.run(jobs.describe, {}, seconds=5)

    assert before["pid"] != after["pid"]
    assert not psutil.pid_exists(before["pid"])


async def test_memory_is_bounded(pool: WorkerPool) -> None:
    assert await pool.run(jobs.take_memory, {"size": 1_000_000}, seconds=5) == 1_000_000
    if sys.platform == "linux":
        with pytest.raises(MemoryExceeded):
            await pool.run(jobs.take_memory, {"size": 2 * _MEMORY}, seconds=5)
    assert await pool.run(jobs.echo, {"value": 1}, seconds=5) == 1


async def test_dead_worker_is_replaced(pool: WorkerPool) -> None:
    with pytest.raises(WorkerLost):
        await pool.run(jobs.die, {}, seconds=5)
    assert await pool.run(jobs.echo, {"value": 1}, seconds=5) == 1


async def test_reply_without_end_is_refused(pool: WorkerPool) -> None:
    with pytest.raises(WorkerLost):
        await pool.run(jobs.echo, {"value": "x" * 5_000_000}, seconds=5)


async def test_cancellation_kills_the_call(pool: WorkerPool) -> None:
    await pool.run(jobs.echo, {"value": 1}, seconds=5)
    (worker,) = map(psutil.Process, pool.pids)
    call = asyncio.create_task(pool.run(jobs.spin, {}, seconds=60))
    idle = sum(worker.cpu_times()[:2])
    await asyncio.to_thread(eventually, lambda: sum(worker.cpu_times()[:2]) > idle)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert not worker.is_running()
    assert not pool.pids


async def test_workers_ignore_interrupt_and_termination_signals(pool: WorkerPool) -> None:
    await pool.run(jobs.echo, {"value": 1}, seconds=5)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert (await pool.run(jobs.describe, {}, seconds=5))["pid"] == pid


async def test_idle_worker_ends() -> None:
    pool = WorkerPool(memory=_MEMORY, idle_seconds=0.05)
    await pool.run(jobs.echo, {"value": 1}, seconds=5)
    (worker,) = map(psutil.Process, pool.pids)
    await asyncio.to_thread(eventually, lambda: _has_ended(worker))

    assert not pool.pids
    await pool.close()


async def test_close_ends_idle_and_busy_workers() -> None:
    pool = WorkerPool(memory=_MEMORY)
    await asyncio.gather(*(pool.run(jobs.echo, {"value": 1}, seconds=5) for _ in range(2)))
    call = asyncio.create_task(pool.run(jobs.spin, {}, seconds=60))
    await asyncio.sleep(0)
    pids = pool.pids
    await pool.close()
    await pool.close()

    with pytest.raises(WorkerLost):
        await call
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))
    with pytest.raises(WorkerLost):
        await pool.run(jobs.echo, {"value": 1}, seconds=5)


_PARENT = """
import asyncio
from tests.unit.workers import jobs
from torana.workers.pool import WorkerPool

async def main():
    pool = WorkerPool(memory=512 * 1024 * 1024)
    await pool.run(jobs.echo, {"value": 1}, seconds=5)
    print(*pool.pids, flush=True)
    await pool.run(jobs.spin, {}, seconds=600)

asyncio.run(main())
"""


def test_worker_ends_with_a_killed_gateway() -> None:
    command = [sys.executable, "-c", _PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        eventually(lambda: sum(worker.cpu_times()[:2]) > 0.3)
        parent.kill()

    eventually(lambda: _has_ended(worker))


def _has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
