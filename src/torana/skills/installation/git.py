"""Fetch one revision of a git repository as an archive, without a checkout, hooks or submodules."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torana.skills.errors import SkillInvalid
from torana.skills.installation.archive import PACKED_LIMIT, UNPACKED_LIMIT
from torana.skills.installation.sources import SkillSource, split_address

SECONDS = 120.0
#: Maximum memory, in bytes, of each process of git.
MEMORY_LIMIT = 512 * 1024 * 1024
#: The unpacked limit, plus the headers of a tar file.
_TAR_LIMIT = UNPACKED_LIMIT + 4 * 1024 * 1024

#: Options of every git command: run no hooks, and do not hold large files in memory.
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.bigFileThreshold=1m",
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
    "credential.helper=",
    "submodule.recurse=false",
    # Each thread would reserve memory, which counts towards the limit.
    "pack.threads=1",
    "index.threads=1",
)
#: The kernel's limits for git and its children: KiB of memory, 512-byte blocks of a file, seconds of CPU time.
#: A repository of a few kilobytes can describe a billion files, or files of gigabytes.
_LIMITS = f"{{ ulimit -v {MEMORY_LIMIT >> 10}; ulimit -f {PACKED_LIMIT // 512}; ulimit -t 60; }} 2>/dev/null"
#: Gives the session of git, where Linux groups processes by session, the same low priority as its processes.
_LOW = "{ echo 10 >/proc/self/autogroup; } 2>/dev/null"
#: The number of fetches at the same time; further ones wait.
_FETCHES = 2
#: The first version of git with ``http.curloptResolve``.
_PINNING = (2, 37)

_TOO_LARGE = (
    f"The repository has more than {PACKED_LIMIT >> 20} MiB packed, or {UNPACKED_LIMIT >> 20} MiB unpacked; "
    "clone it yourself and install the folder of the skill."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """The git of this machine. It gets ``environ`` and the variables of ``_environ``, and no others."""

    environ: Mapping[str, str]
    seconds: float = SECONDS
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_FETCHES), repr=False)

    async def fetch(
        self, source: SkillSource, *, path: str | None = None, addresses: Sequence[str] = ()
    ) -> bytes:
        """Return the tree of the source's revision, or of its folder ``path`` if that exists, as a ``.tar.gz``.

        With ``addresses``, git connects only to these, whatever the name resolves to. Raises ``SkillInvalid``
        for a repository that is not available, too large or too slow.
        """
        async with self._free:
            return await self._fetch(source, path, addresses)

    async def _fetch(self, source: SkillSource, path: str | None, addresses: Sequence[str]) -> bytes:
        with tempfile.TemporaryDirectory(prefix="torana-git-") as scratch:
            git = _Run(
                repository=Path(scratch, "repository"),
                environ=_environ(self.environ, Path(scratch), source),
                options=(*_OPTIONS, *_pins(source, addresses)),
            )
            try:
                async with asyncio.timeout(self.seconds):
                    if addresses:
                        await _check_pins(git)
                    tree = await _tree(git, source, path)
                    return await asyncio.to_thread(gzip.compress, tree, 6, mtime=0)
            except TimeoutError:
                raise SkillInvalid(f"{source} was not fetched within {self.seconds:g} s; try again.") from None


async def _check_pins(git: _Run) -> None:
    """Refuse a git that would ignore ``http.curloptResolve`` and connect to any address."""
    found = re.search(r"(\d+)\.(\d+)", (await git("version")).decode())
    if found is None or (int(found[1]), int(found[2])) < _PINNING:
        raise SkillInvalid("The gateway's git is older than 2.37; install a newer one.")


async def _tree(git: _Run, source: SkillSource, path: str | None) -> bytes:
    place = f"file://{source.address}" if source.address.startswith("/") else source.address
    await git("init", "--quiet", "--bare", "--template=", str(git.repository))
    await git("fetch", "--quiet", "--depth=1", "--no-tags", "--", place, source.revision or "HEAD")
    only = [path] if path and await git.has(f"FETCH_HEAD:{path}") else []
    return await git("archive", "--format=tar", "FETCH_HEAD", "--", *only)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    repository: Path
    environ: Mapping[str, str]
    options: Sequence[str]

    async def __call__(self, *arguments: str) -> bytes:
        """Return the output of git. Raises ``SkillInvalid`` with git's message on failure."""
        code, output, stderr = await self._run(arguments)
        if code == 0:
            return output
        if "out of memory" in stderr.lower() or await asyncio.to_thread(_is_full, self.repository):
            raise SkillInvalid(_TOO_LARGE)
        words = " ".join(stderr.split())[:300] or f"git ended with {code}"
        raise SkillInvalid(f"git could not fetch the source: {words}")

    async def has(self, name: str) -> bool:
        return (await self._run(("cat-file", "-e", name)))[0] == 0

    async def _run(self, arguments: Sequence[str]) -> tuple[int, bytes, str]:
        options = [part for option in self.options for part in ("-c", option)]
        try:
            process = await asyncio.create_subprocess_exec(
                *("sh", "-c", f'{_LIMITS}; {_LOW}; exec nice git "$@"', "git", *options, *arguments),
                cwd=self.repository.parent,
                env={**self.environ, "GIT_DIR": str(self.repository)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise SkillInvalid(f"git cannot be run ({error.strerror}); install git.") from error
        try:
            # Read both to the end while git runs: a full pipe would block it.
            output, errors = await asyncio.gather(
                _read_bounded(process, process.stdout, _TAR_LIMIT),
                _read_bounded(process, process.stderr, 64 * 1024),
            )
            code = await process.wait()
        finally:
            if process.returncode is None:
                _kill(process)
                await process.communicate()
        if len(output) > _TAR_LIMIT:
            raise SkillInvalid(_TOO_LARGE)
        return code, output, errors.decode(errors="replace")


def _is_full(repository: Path) -> bool:
    """Return whether a file reached the size limit; git then fails with varying messages."""
    return any(path.lstat().st_size >= PACKED_LIMIT for path in repository.rglob("*"))


async def _read_bounded(
    process: asyncio.subprocess.Process, stream: asyncio.StreamReader | None, limit: int
) -> bytes:
    """Return the output. Above the limit, kill the process and discard the rest."""
    data = bytearray()
    while stream is not None and (chunk := await stream.read(64 * 1024)):
        if len(data) <= limit:
            data += chunk
        elif process.returncode is None:
            _kill(process)
    return bytes(data)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environ(given: Mapping[str, str], home: Path, source: SkillSource) -> dict[str, str]:
    """Return variables that disable prompts and the user's configuration, and limit the protocols."""
    protocols = "file" if source.address.startswith("/") else "https:ssh:git"
    return {
        **given,
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": protocols,
    }


def _pins(source: SkillSource, addresses: Sequence[str]) -> list[str]:
    if not addresses:
        return []
    parts = split_address(source.address)
    literal = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
    resolve = f"http.curloptResolve={parts.hostname}:{parts.port or 443}:{literal}"
    return [resolve, "http.proxy=", "http.followRedirects=false"]
