"""The sandbox: one job in, its outcome out, and nothing of it left."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torana.tools.sandbox import forward, seccomp
from torana.tools.sandbox.bubblewrap import ETC_FILES, NOBODY, PATH, Bubblewrap
from torana.tools.sandbox.egress import Egress, Resolve
from torana.tools.sandbox.job import Job, Limits, Outcome, SandboxFault
from torana.tools.sandbox.process import BoundedProcess, sealed_file

#: What every job finds in its environment; secrets are added to it, nothing else.
_ENVIRON = {"PATH": PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108 - inside
_FORWARD = Path(forward.__file__).read_text(encoding="utf-8")
_PROXY = f"http://127.0.0.1:{forward.PORT}"
_PROXY_ENVIRON = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    "NODE_USE_ENV_PROXY": "1",
}


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

        Raises ``SandboxFault`` where there is no sandbox to be had, or not with what the job is to see; what
        ``job.prepare`` raises comes through.
        """
        fault = await asyncio.to_thread(self._bubblewrap.fault)
        if fault is not None:
            raise SandboxFault(fault)
        async with self._free:
            room = _make_room()
            try:
                started = await asyncio.to_thread(_furnish, room, job)
                return await self._run_in(room, job, started, limits or Limits())
            finally:
                await asyncio.to_thread(shutil.rmtree, room, ignore_errors=True)

    async def _run_in(self, room: Path, job: Job, started: Sequence[str], limits: Limits) -> Outcome:
        egress = Egress(hosts=job.hosts, resolve=self._resolve)
        environ = {**_ENVIRON, **(_PROXY_ENVIRON if job.hosts else {}), **job.environ}
        with sealed_file(seccomp.program()) as descriptor:
            command = self._bubblewrap.command(job, started, room=room, limits=limits, seccomp=descriptor)
            try:
                if job.hosts:
                    await egress.open(room / "egress.sock")
                    (room / "egress.sock").chmod(0o666)
                outcome = await BoundedProcess(limits=limits).run(
                    command, environ=environ, stdin=job.stdin, descriptors=[descriptor]
                )
            except OSError as error:
                raise SandboxFault(f"The sandbox cannot be started: {error.strerror}.") from error
            finally:
                await egress.close()
        if outcome.code == 1 and outcome.stderr.startswith(b"bwrap: "):
            said = outcome.stderr.decode(errors="replace").strip()
            raise SandboxFault(f"The sandbox cannot be set up: {said[:200]}")
        return replace(outcome, refused=egress.refused)


def _make_room() -> Path:
    """A directory of the run's own. Only the sandbox's user can enter it, and what is in it may be read."""
    room = Path(tempfile.mkdtemp(prefix="torana-"))
    if os.geteuid() == 0:
        os.chown(room, NOBODY, NOBODY)
    return room


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
