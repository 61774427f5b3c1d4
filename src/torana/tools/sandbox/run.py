"""The sandbox: one job in, its outcome out, and nothing of it left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torana.lasting import to_its_end
from torana.tools.sandbox import forward, seccomp
from torana.tools.sandbox.bubblewrap import ETC_FILES, NOBODY, PATH, STARTED, Bubblewrap
from torana.tools.sandbox.egress import Egress, Resolve
from torana.tools.sandbox.job import Job, Limits, Outcome, SandboxFault
from torana.tools.sandbox.process import BoundedProcess, sealed_file
from torana.tools.sandbox.rooms import make_room
from torana.tools.sandbox.usage import Disks

#: What every job finds in its environment; secrets are added to it, nothing else.
_ENVIRON = {"PATH": PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108 - inside
_FORWARD = Path(forward.__file__).read_text(encoding="utf-8")
_PROXY = f"http://127.0.0.1:{forward.PORT}"
_PROXY_ENVIRON = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    "NODE_USE_ENV_PROXY": "1",
}


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a run's room has come to hold, what is to be started, and descriptors of the job's directories."""

    room: Path
    started: Sequence[str]
    directories: Mapping[str, int]
    #: Those of the directories that can be written to; None where there is none.
    disks: Disks | None


class Sandbox:
    """Runs jobs, a few at a time; the others wait."""

    def __init__(self, *, bubblewrap: Bubblewrap, resolve: Resolve, at_once: int = 4) -> None:
        self._bubblewrap = bubblewrap
        self._resolve = resolve
        self._free = asyncio.Semaphore(at_once)

    def which(self, program: str) -> str | None:
        """Where the sandbox has the program; None where it has not, though the host may."""
        return self._bubblewrap.which(program)

    async def run(self, job: Job, limits: Limits | None = None) -> Outcome:
        """Run ``job`` to its end, which comes within ``limits``.

        Nothing of it is left when this returns, nor when it is cancelled. Raises ``SandboxFault`` where there
        is no sandbox to be had, or not with what the job is to see; what ``job.prepare`` raises comes through,
        save ``OSError``.
        """
        fault = await asyncio.to_thread(self._bubblewrap.fault)
        if fault is not None:
            raise SandboxFault(fault)
        async with self._free:
            try:
                return await self._run(job, limits or Limits())
            except OSError as error:
                raise SandboxFault(f"The sandbox cannot be started: {error.strerror or error}.") from error

    async def _run(self, job: Job, limits: Limits) -> Outcome:
        room = make_room(group=NOBODY if os.geteuid() == 0 else None)
        with ExitStack() as held:
            try:
                prepared = await to_its_end(partial(self._prepare, job, room.path, held))
                return await self._start(job, prepared, limits)
            finally:
                await to_its_end(room.remove)

    def _prepare(self, job: Job, room: Path, held: ExitStack) -> _Prepared:
        started = _furnish(room, job)
        directories = self._bubblewrap.open(job, held)
        writable = [directories[path] for path in job.writable]
        return _Prepared(room, started, directories, Disks(writable) if writable else None)

    async def _start(self, job: Job, prepared: _Prepared, limits: Limits) -> Outcome:
        room, directories = prepared.room, prepared.directories
        egress = Egress(hosts=job.hosts, resolve=self._resolve)
        environ = {**_ENVIRON, **(_PROXY_ENVIRON if job.hosts else {}), **job.environ}
        with sealed_file(seccomp.program()) as calls:
            command = self._bubblewrap.command(
                job,
                prepared.started,
                room=room,
                limits=limits,
                seccomp=calls,
                directories=directories,
            )
            try:
                if job.hosts:
                    await egress.open(room / "egress.sock")
                    (room / "egress.sock").chmod(0o666)
                outcome = await BoundedProcess(limits=limits).run(
                    command,
                    environ=environ,
                    stdin=job.stdin,
                    descriptors=[calls, *directories.values()],
                    disks=prepared.disks,
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
            said = outcome.stderr.decode(errors="replace").strip() or f"exit code {outcome.code}"
            raise SandboxFault(f"The sandbox cannot be set up: {said[:200]}")
        return replace(outcome, refused=egress.refused)


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
    """Let the sandbox's user read it, as the umask may forbid it, and run it, as archives may forget it."""
    for directory, _folders, names in os.walk(folder):
        Path(directory).chmod(0o755)
        for name in names:
            (Path(directory) / name).chmod(0o555)
