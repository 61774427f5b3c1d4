"""The sandbox: run a job and return its outcome."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from torana.aio import run_uncancellable
from torana.tools.sandbox import forward, seccomp
from torana.tools.sandbox.bubblewrap import ETC_FILES, NOBODY, PATH, STARTED, Bubblewrap
from torana.tools.sandbox.egress import Egress, Resolve
from torana.tools.sandbox.job import Job, Outcome, SandboxFault, SandboxLimits
from torana.tools.sandbox.process import BoundedProcess, sealed_file
from torana.tools.sandbox.usage import Disks, kernel_memory
from torana.tools.sandbox.workdirs import make_workdir

#: The environment of every job, to which only the job's variables are added.
_ENVIRON = {"PATH": PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108 - inside
_FORWARD = Path(forward.__file__).read_text(encoding="utf-8")
_PROXY = f"http://127.0.0.1:{forward.PORT}"
_PROXY_ENVIRON = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    "NODE_USE_ENV_PROXY": "1",
}


class Sandbox:
    """Runs jobs with limited concurrency; further jobs wait."""

    def __init__(self, *, bubblewrap: Bubblewrap, resolve: Resolve, at_once: int = 4) -> None:
        self._bubblewrap = bubblewrap
        self._resolve = resolve
        self._free = asyncio.Semaphore(at_once)
        self._kernel = _KernelMemory()

    def which(self, program: str) -> str | None:
        """Return a program's path in the sandbox; None if the sandbox lacks it, even if the host has it."""
        return self._bubblewrap.which(program)

    async def run(self, job: Job, limits: SandboxLimits | None = None) -> Outcome:
        """Run ``job`` within ``limits``, and return its outcome.

        Nothing of the run remains afterwards, even after a cancellation. Raises ``SandboxFault`` if the sandbox
        is not available or cannot show the job's directories, and the errors of ``job.prepare`` except
        ``OSError``.
        """
        fault = await asyncio.to_thread(self._bubblewrap.fault)
        if fault is not None:
            raise SandboxFault(fault)
        async with self._free:
            try:
                return await self._run(job, limits or SandboxLimits())
            except OSError as error:
                raise SandboxFault(f"The sandbox cannot be started: {error.strerror or error}.") from error

    async def _run(self, job: Job, limits: SandboxLimits) -> Outcome:
        room = make_workdir(group=NOBODY if os.geteuid() == 0 else None)
        with ExitStack() as held:
            try:
                script, directories = await run_uncancellable(partial(self._prepare, job, room.path, held))
                return await self._start(job, room.path, script, directories, limits)
            finally:
                await run_uncancellable(room.remove)

    def _prepare(self, job: Job, room: Path, held: ExitStack) -> tuple[Sequence[str], Mapping[str, int]]:
        """Return the command of the job, and the descriptors of its directories."""
        return _furnish(room, job), self._bubblewrap.open(job, held)

    async def _start(
        self,
        job: Job,
        room: Path,
        script: Sequence[str],
        directories: Mapping[str, int],
        limits: SandboxLimits,
    ) -> Outcome:
        writable = [directories[path] for path in job.writable]
        egress = Egress(hosts=job.hosts, resolve=self._resolve)
        environ = {**_ENVIRON, **(_PROXY_ENVIRON if job.hosts else {}), **job.environ}
        with sealed_file(seccomp.program(may_flush=bool(job.writable))) as calls:
            command = self._bubblewrap.command(
                job,
                script,
                room=room,
                limits=limits,
                seccomp=calls,
                directories=directories,
            )
            try:
                if job.hosts:
                    await egress.open(room / "egress.sock")
                    (room / "egress.sock").chmod(0o666)
                with self._kernel.measured_before() as kernel_before:
                    outcome = await BoundedProcess(limits=limits, kernel_before=kernel_before).run(
                        command,
                        environ=environ,
                        stdin=job.stdin,
                        descriptors=[calls, *directories.values()],
                        disks=Disks(writable) if writable else None,
                    )
            finally:
                await egress.close()
        if outcome.stderr.startswith(STARTED):
            outcome = replace(
                outcome,
                stderr=outcome.stderr[len(STARTED) :],
                stderr_bytes=outcome.stderr_bytes - len(STARTED),
            )
        elif outcome.stopped is None:
            reason = outcome.stderr.decode(errors="replace").strip() or f"exit code {outcome.code}"
            raise SandboxFault(f"The sandbox cannot be set up: {reason[:200]}")
        return replace(outcome, refused=egress.refused_hosts, exceeded_traffic=egress.exceeded_traffic)


class _KernelMemory:
    """The kernel's memory before overlapping runs: what an earlier run holds does not count as before a run."""

    def __init__(self) -> None:
        self._before = 0
        self._runs = 0

    @contextmanager
    def measured_before(self) -> Generator[int]:
        """Yield the bytes before the block and before all blocks that overlap with it, also indirectly."""
        if not self._runs:
            self._before = kernel_memory()
        self._runs += 1
        try:
            yield self._before
        finally:
            self._runs -= 1


def _furnish(room: Path, job: Job) -> Sequence[str]:
    (room / "etc").mkdir()
    for name, text in ETC_FILES.items():
        (room / "etc" / name).write_text(text, encoding="utf-8")
    if job.hosts:
        (room / "forward.py").write_text(_FORWARD, encoding="utf-8")
    (room / "skill").mkdir()
    started = job.prepare(room / "skill")
    for path in (room / "etc", room / "skill"):
        _open_up(path)
    return started


def _open_up(folder: Path) -> None:
    """Make the folder readable and executable for the sandbox's user, whatever the umask or archive set."""
    for directory, _folders, names in os.walk(folder):
        Path(directory).chmod(0o755)
        for name in names:
            (Path(directory) / name).chmod(0o555)
