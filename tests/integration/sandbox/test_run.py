"""Runs that are given up, and many at once, in a gateway's own event loop."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from tests.parts import require

from torana.tools.sandbox import Bubblewrap, Job, Limits, Sandbox, SandboxFault


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the runs' own directories are made; all users may enter it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def sandbox(rooms: Path) -> Sandbox:
    require("bwrap", "bubblewrap")

    async def nowhere(_host: str, _port: int) -> Sequence[str]:
        return []

    return Sandbox(bubblewrap=Bubblewrap(), resolve=nowhere)


def job(*command: str, environ: dict[str, str] | None = None) -> Job:
    return Job(prepare=lambda _folder: command, environ=environ or {})


def running(marker: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if marker in " ".join(one.info["cmdline"] or [])]


def left_in(rooms: Path) -> list[Path]:
    return list(rooms.iterdir())


async def started(marker: str) -> None:
    while not running(marker):  # noqa: ASYNC110 - a process tells nobody that it has started
        await asyncio.sleep(0.01)


async def test_a_cancelled_run_leaves_nothing(sandbox: Sandbox, rooms: Path) -> None:
    task = asyncio.create_task(sandbox.run(job("/usr/bin/sleep", "1234.5")))
    await started("sleep 1234.5")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert running("sleep 1234.5") == []
    assert left_in(rooms) == []


async def test_more_runs_than_may_be_at_once_all_end(sandbox: Sandbox) -> None:
    outcomes = await asyncio.gather(*(sandbox.run(job("/usr/bin/echo", str(n))) for n in range(9)))

    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n".encode() for n in range(9)]


async def test_a_secret_is_on_no_command_line(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.run(job("/usr/bin/sleep", "1.2345", environ={"KEY": "value-of-key"})))
    await started("sleep 1.2345")

    assert running("value-of-key") == []
    await task


async def test_a_run_that_cannot_be_prepared_leaves_nothing(sandbox: Sandbox, rooms: Path) -> None:
    def prepare(_folder: Path) -> list[str]:
        raise ValueError("changed")

    with pytest.raises(ValueError, match="changed"):
        await sandbox.run(Job(prepare=prepare))

    assert left_in(rooms) == []


async def test_what_bubblewrap_itself_refuses_is_the_sandboxs_fault(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFault, match=r"The sandbox cannot be set up: bwrap: .*size"):
        await sandbox.run(job("/usr/bin/true"), Limits(disk=-1))


async def test_what_is_too_long_for_a_command_is_the_sandboxs_fault(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFault, match="The sandbox cannot be started: Argument list too long"):
        await sandbox.run(job("/usr/bin/true", "x" * 200_000))
