"""The kernel's memory before runs that overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from torana.tools.sandbox import run as module
from torana.tools.sandbox.bubblewrap import STARTED, Bubblewrap
from torana.tools.sandbox.job import Job, Outcome, SandboxLimits
from torana.tools.sandbox.run import Sandbox

DONE = Outcome(code=0, stopped=None, seconds=0, stdout=b"", stderr=STARTED, stdout_bytes=0, stderr_bytes=0)


async def nowhere(_host: str, _port: int) -> list[str]:
    return []


def prepare(_folder: Path) -> Sequence[str]:
    return ["true"]


async def test_overlapping_runs_share_the_measurement_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = iter([100, 900])
    #: The memory before each begun run, and the event that ends it.
    begun: asyncio.Queue[tuple[int, asyncio.Event]] = asyncio.Queue()

    class Process:
        def __init__(self, *, limits: SandboxLimits, kernel_before: int) -> None:
            del limits
            self._before = kernel_before

        async def run(self, *_: object, **__: object) -> Outcome:
            end = asyncio.Event()
            begun.put_nowait((self._before, end))
            await end.wait()
            return DONE

    monkeypatch.setattr(module, "kernel_memory", lambda: next(memory))
    monkeypatch.setattr(module, "BoundedProcess", Process)
    monkeypatch.setattr(Bubblewrap, "fault", Mock(return_value=None))
    monkeypatch.setattr(Bubblewrap, "command", Mock(return_value=["true"]))
    sandbox = Sandbox(bubblewrap=Bubblewrap(), resolve=nowhere)

    async def begin() -> tuple[int, asyncio.Event, asyncio.Task[Outcome]]:
        run = asyncio.create_task(sandbox.run(Job(prepare=prepare)))
        return (*await begun.get(), run)

    seen: list[int] = []
    before, end, run = await begin()
    for _ in range(2):
        seen.append(before)
        earlier = end, run
        before, end, run = await begin()
        earlier[0].set()
        await earlier[1]
    end.set()
    await run
    after, end, run = await begin()
    end.set()
    await run

    assert [*seen, before, after] == [100, 100, 100, 900]
