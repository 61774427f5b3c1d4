"""Cancelled and concurrent runs in a gateway's own event loop."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.parts import require

from torana.tools.sandbox import Bubblewrap, Job, Sandbox, SandboxFault, SandboxLimits, sweep_workdirs

#: A gateway that runs ``sleep 4321.5`` and kills itself as soon as it runs.
KILLED = """
import asyncio, os, psutil, signal
from torana.tools.sandbox import Bubblewrap, Job, Sandbox

async def nowhere(host, port):
    return []

def started():
    try:
        return "sleep" in {one.name() for one in psutil.Process().children(recursive=True)}
    except psutil.NoSuchProcess:
        return False

async def main():
    bubblewrap = Bubblewrap()
    bubblewrap.fault()
    sandbox = Sandbox(bubblewrap=bubblewrap, resolve=nowhere)
    task = asyncio.create_task(sandbox.run(Job(prepare=lambda folder: ("/usr/bin/sleep", "4321.5"))))
    while not started():
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The parent of the runs' directories; all users may enter it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


async def nowhere(_host: str, _port: int) -> Sequence[str]:
    return []


@pytest.fixture
def sandbox(rooms: Path) -> Sandbox:
    require("bwrap", "bubblewrap")
    return Sandbox(bubblewrap=Bubblewrap(), resolve=nowhere)


def job(*command: str, environ: dict[str, str] | None = None) -> Job:
    return Job(prepare=lambda _folder: command, environ=environ or {})


def running(marker: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if marker in " ".join(one.info["cmdline"] or [])]


async def ended(process: psutil.Process) -> None:
    """Wait until a process has ended, which need not be a child."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    end, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        loop.add_reader(descriptor, end.set)
        async with asyncio.timeout(20):
            await end.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def left_in(rooms: Path) -> list[Path]:
    return list(rooms.iterdir())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def started(marker: str) -> None:
    while not running(marker):  # noqa: ASYNC110 - a started process gives no signal
        await asyncio.sleep(0.01)


async def test_cancelled_run_leaves_nothing(sandbox: Sandbox, rooms: Path) -> None:
    task = asyncio.create_task(sandbox.run(job("/usr/bin/sleep", "1234.5")))
    await started("sleep 1234.5")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert running("sleep 1234.5") == []
    assert left_in(rooms) == []


async def test_run_cancelled_during_preparation_leaves_nothing(sandbox: Sandbox, rooms: Path) -> None:
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def prepare(folder: Path) -> list[str]:
        entered.set()
        go_on.wait()
        (folder / "late").mkdir(parents=True)
        ended.set()
        return ["/usr/bin/true"]

    task = asyncio.create_task(sandbox.run(Job(prepare=prepare)))
    await asyncio.to_thread(entered.wait)

    task.cancel()
    # Cancelled twice, as by a caller that is cancelled itself.
    await asyncio.wait([task], timeout=0.05)
    task.cancel()
    await asyncio.wait([task], timeout=0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert ended.is_set()
    assert left_in(rooms) == []
    assert (await sandbox.run(job("/usr/bin/true"))).code == 0


async def test_run_cancelled_during_cleanup_leaves_nothing(
    sandbox: Sandbox, rooms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    rmtree = shutil.rmtree

    def slow(*arguments: Any, **given: Any) -> None:
        entered.set()
        go_on.wait()
        rmtree(*arguments, **given)

    monkeypatch.setattr(shutil, "rmtree", slow)
    task = asyncio.create_task(sandbox.run(job("/usr/bin/true")))
    await asyncio.to_thread(entered.wait)

    task.cancel()
    await asyncio.wait([task], timeout=0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert left_in(rooms) == []


async def test_runs_cancelled_at_any_moment_leave_nothing(sandbox: Sandbox, rooms: Path) -> None:
    await sandbox.run(job("/usr/bin/true"))
    before = descriptors()

    for wait in range(20):
        task = asyncio.create_task(sandbox.run(job("/usr/bin/sleep", "2345.5")))
        await asyncio.wait([task], timeout=wait / 500)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert left_in(rooms) == []

    assert running("sleep 2345.5") == []
    assert descriptors() == before


async def test_waiting_run_can_be_cancelled(rooms: Path, sandbox: Sandbox) -> None:
    sandbox = Sandbox(bubblewrap=Bubblewrap(), resolve=nowhere, at_once=1)
    first = asyncio.create_task(sandbox.run(job("/usr/bin/sleep", "3456.5")))
    await started("sleep 3456.5")
    second = asyncio.create_task(sandbox.run(job("/usr/bin/true")))
    await asyncio.wait([second], timeout=0.05)

    for task in (second, first):
        task.cancel()
        await asyncio.wait([task])

    assert left_in(rooms) == []
    assert (await sandbox.run(job("/usr/bin/true"))).code == 0


def kill_a_gateway(rooms: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(rooms)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environ, check=False)
    assert done.returncode == -signal.SIGKILL


async def test_sweep_removes_only_leftovers_of_a_killed_gateway(sandbox: Sandbox, rooms: Path) -> None:
    await asyncio.to_thread(kill_a_gateway, rooms)
    (left,) = left_in(rooms)
    task = asyncio.create_task(sandbox.run(job("/usr/bin/sleep", "0.5")))
    await started("sleep 0.5")
    others = [rooms / name for name in ("torana-run-open", "torana-run-link", "torana-run-file", "mine")]
    others[0].mkdir()
    others[0].chmod(0o777)
    others[1].symlink_to("mine")
    others[2].touch()
    others[3].mkdir(mode=0o700)
    (alive,) = {*left_in(rooms)} - {left, *others}

    assert sweep_workdirs() == 1

    assert {*left_in(rooms)} == {alive, *others}
    assert (await task).code == 0
    assert {*left_in(rooms)} == {*others}


@pytest.mark.usefixtures("sandbox")
async def test_killing_the_gateway_ends_its_runs(rooms: Path) -> None:
    await asyncio.to_thread(kill_a_gateway, rooms)

    for process in running("sleep 4321.5"):
        await ended(process)

    assert running("sleep 4321.5") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_sweep_leaves_directories_of_other_users(rooms: Path) -> None:
    theirs = rooms / "torana-run-theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 1234, -1)

    assert sweep_workdirs() == 0
    assert left_in(rooms) == [theirs]


def test_sweep_of_a_missing_directory_does_nothing(rooms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(rooms / "none"))

    assert sweep_workdirs() == 0


async def test_missing_temporary_directory_is_a_sandbox_fault(
    sandbox: Sandbox, rooms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(rooms / "none"))

    with pytest.raises(SandboxFault, match="The sandbox cannot be started: No such file or directory"):
        await sandbox.run(job("/usr/bin/true"))


async def test_runs_over_the_concurrency_limit_all_complete(sandbox: Sandbox) -> None:
    outcomes = await asyncio.gather(*(sandbox.run(job("/usr/bin/echo", str(n))) for n in range(9)))

    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n".encode() for n in range(9)]


async def test_secret_is_not_on_a_command_line(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.run(job("/usr/bin/sleep", "1.2345", environ={"KEY": "value-of-key"})))
    await started("sleep 1.2345")

    assert running("value-of-key") == []
    await task


async def test_run_with_a_failed_preparation_leaves_nothing(sandbox: Sandbox, rooms: Path) -> None:
    def prepare(_folder: Path) -> list[str]:
        raise ValueError("changed")

    with pytest.raises(ValueError, match="changed"):
        await sandbox.run(Job(prepare=prepare))

    assert left_in(rooms) == []


async def test_refusal_by_bubblewrap_is_a_sandbox_fault(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFault, match=r"The sandbox cannot be set up: bwrap: .*size"):
        await sandbox.run(job("/usr/bin/true"), SandboxLimits(disk=-1))


async def test_too_long_argument_list_is_a_sandbox_fault(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFault, match="The sandbox cannot be started: Argument list too long"):
        await sandbox.run(job("/usr/bin/true", "x" * 200_000))
