"""Build the command line of bubblewrap: a root directory with only the system's programs.

Nothing else of the host is visible: no home, no data directory, and of ``/etc`` only a few harmless files.
Every mount is read-only except ``/tmp`` and ``/dev/shm``, which are limited in size and discarded after the
run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from torana.tools.sandbox.job import MIB, NICENESS, Job, SandboxFault, SandboxLimits

#: The directory of the job's files. A neutral path; only `mountinfo` shows that of the copy on the host.
FOLDER = "/skill"
#: The user id of a script inside, and also outside if the gateway is root.
NOBODY = 65534
#: The search path inside the sandbox, and outside for the programs that build it.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: The first byte of standard error after the sandbox was set up.
STARTED = b"\0"

#: The first process of the sandbox: it writes ``STARTED``, runs the command, and returns its exit code. It
#: writes nothing else to standard error, such as the name of a signal. bubblewrap ends with the gateway, except
#: if the gateway is killed in the moment before bubblewrap requests this. Then standard error has no reader, so
#: ``STARTED`` cannot be written, and the command is not started.
_INIT = ("/bin/sh", "-c", r'printf "\0" >&2 && exec 3>&2 2>&- && (exec "$@" 2>&3 3>&-); exit $?', "sh")
_SHM = 16 * MIB
_OPEN_FILES = 256
#: POSIX timers count as pending signals.
_PENDING_SIGNALS = 1_024
#: Top-level directories that are links into /usr on most systems.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: The parts of /etc that programs need: libraries, certificates, Debian's alternatives, the time zone.
_ETC = (
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates/extracted",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/localtime",
)
#: The sandbox's own files in /etc.
ETC_FILES = {
    "passwd": f"nobody:x:{NOBODY}:{NOBODY}:nobody:/tmp:/bin/sh\n",
    "group": f"nogroup:x:{NOBODY}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}

_BUBBLEWRAP_CURE = (
    "Install bubblewrap 0.10 or newer, or the security update of 0.8 or 0.9 that knows --bind-fd "
    "(apt install bubblewrap)."
)
_NAMESPACES_CURE = (
    "This system forbids user namespaces. Allow them: `sysctl -w user.max_user_namespaces=15000`, "
    "on older Debian `sysctl -w kernel.unprivileged_userns_clone=1`, on Ubuntu `sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0`; a container needs a seccomp profile that lets it make "
    "namespaces."
)


class Bubblewrap:
    """Builds the command lines. ``hidden`` are paths that no job may see, even if they were granted."""

    def __init__(self, *, hidden: Iterable[Path] = ()) -> None:
        self._hidden = tuple(Path(os.path.realpath(path)) for path in hidden)
        self._as_root = os.geteuid() == 0
        self._is_well = False

    def fault(self) -> str | None:
        """Return why the sandbox does not work here, with the cure, or None. Success is cached.

        A test takes about 50 ms.
        """
        if not self._is_well:
            fault = self._probe()
            self._is_well = fault is None
            return fault
        return None

    def which(self, program: str) -> str | None:
        """Return a program's path in the sandbox; None if the sandbox lacks it, even if the host has it."""
        found = shutil.which(program, path=PATH)
        real = os.path.realpath(found) if found else ""
        visible = real.startswith(("/usr/", *(f"{folder}/" for folder in _SYSTEM)))
        hidden = any(Path(real).is_relative_to(place) for place in self._hidden)
        return found if visible and not hidden else None

    def open(self, job: Job, held: ExitStack) -> dict[str, int]:
        """Return descriptors of the job's directories by path, which ``held`` closes. Blocks.

        Raises ``SandboxFault`` for a directory that must not be visible.
        """
        return open_directories([*job.directories, *job.writable], hidden=self._hidden, held=held)

    def command(
        self,
        job: Job,
        script: Sequence[str],
        *,
        room: Path,
        limits: SandboxLimits,
        seccomp: int,
        directories: Mapping[str, int],
    ) -> list[str]:
        """Return the command line for ``job``, which runs the command ``script``.

        ``room`` contains its files: ``skill`` and ``etc``, with hosts also ``egress.sock`` and ``forward.py``.
        ``seccomp`` is a descriptor of the system call filter, ``directories`` the result of ``open``; the
        command must inherit them. When the sandbox is set up, it writes ``STARTED`` to standard error before
        the job starts. Raises ``SandboxFault`` if a program is missing.
        """
        inner = [*_INIT, *script]
        if job.hosts:
            python = self.which("python3")
            if python is None:
                raise SandboxFault("A script with hosts needs the system's Python: apt install python3.")
            inner = [python, "-I", "-S", "/run/forward.py", *inner]
        # The outermost command inside, so that every process there inherits the limits.
        inner = [*self._program("prlimit"), *_limits(limits), "--", *inner]
        root = self._root(job, room=room, limits=limits, directories=directories)
        return [*self._outer(), *_walls(), "--seccomp", str(seccomp), *root, "--", *inner]

    def _outer(self) -> Iterator[str]:
        """Yield the commands before bubblewrap: they lower the priority and drop root's rights.

        RLIMIT_NPROC does not apply to root, and root could write to files that belong to root.
        """
        yield from (*self._program("nice"), "-n", str(NICENESS), *self._program("choom"), "-n", "1000", "--")
        if self._as_root:
            ids = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
            yield from (*self._program("setpriv"), *ids, "--inh-caps=-all", "--")
        yield from self._program("bwrap")

    def _root(
        self, job: Job, *, room: Path, limits: SandboxLimits, directories: Mapping[str, int]
    ) -> Iterator[str]:
        yield from ("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox", "--new-session")
        # The job's directories come first, so that the sandbox's mounts cover them: a nested directory may be
        # moved during the setup.
        for path in (path for path in job.directories if path not in job.writable):
            yield from ("--ro-bind-fd", str(directories[path]), path)
        for path in job.writable:
            yield from ("--bind-fd", str(directories[path]), path)
        yield from ("--ro-bind", "/usr", "/usr")
        for folder in _SYSTEM:
            yield from _system_folder(folder)
        for path in _ETC:
            yield from ("--ro-bind-try", path, path)
        for name in ETC_FILES:
            yield from ("--ro-bind", str(room / "etc" / name), f"/etc/{name}")
        # Read-only: a script could change the first process (mem), or the priority of the OOM killer
        # (oom_score_adj).
        yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
        # /dev/full returns zeros too. A mapping of /dev/zero itself would be shared memory that counts for no
        # process.
        yield from ("--dev-bind", "/dev/full", "/dev/zero")
        yield from ("--size", str(_SHM), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev")  # noqa: S108 - inside
        yield from ("--size", str(limits.disk), "--perms", "1777", "--tmpfs", "/tmp")  # noqa: S108 - inside
        yield from ("--ro-bind", str(room / "skill"), FOLDER)
        if job.hosts:
            for name in ("egress.sock", "forward.py"):
                yield from ("--ro-bind", str(room / name), f"/run/{name}")
        for path in self._hidden:
            if path.is_relative_to("/usr") and path.is_dir():
                yield from ("--tmpfs", str(path), "--remount-ro", str(path))
        yield from ("--remount-ro", "/", "--chdir", FOLDER)

    def _program(self, name: str) -> tuple[str, ...]:
        path = shutil.which(name, path=PATH)
        if path is None:
            package = {"bwrap": "bubblewrap", "nice": "coreutils"}.get(name, "util-linux")
            raise SandboxFault(f"The program {name} is missing: apt install {package}.")
        return (path,)

    def _probe(self) -> str | None:
        if sys.platform != "linux":
            return "Scripts run on Linux only, because the sandbox needs its namespaces."
        root = os.open("/", os.O_PATH)
        try:
            command = [*self._outer(), *_walls(), "--ro-bind-fd", str(root), "/"]
            command += ["--size", "4096", "--tmpfs", "/dev", "--", "/usr/bin/env", "true"]
            done = subprocess.run(  # noqa: S603 - our own words
                command,
                capture_output=True,
                text=True,
                timeout=10,
                env={"PATH": PATH},
                pass_fds=[root],
                check=False,
            )
        except SandboxFault as fault:
            return str(fault)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"The test of the sandbox failed ({error}). {_BUBBLEWRAP_CURE}"
        finally:
            os.close(root)
        return None if done.returncode == 0 else _explain(done.stderr)


def _walls() -> Sequence[str]:
    namespaces = ("--unshare-all", "--unshare-user", "--disable-userns")
    # bubblewrap's own first process is left out: it would have no limits, because limits are set inside.
    return (*namespaces, "--as-pid-1", "--cap-drop", "ALL", "--die-with-parent")


def _system_folder(folder: str) -> Sequence[str]:
    if Path(folder).is_symlink():
        return "--symlink", str(Path(folder).readlink()), folder
    return "--ro-bind-try", folder, folder


def _limits(limits: SandboxLimits) -> Sequence[str]:
    # The address space has no limit: JavaScript engines reserve gigabytes that they never use.
    return (
        f"--nproc={limits.processes}",
        f"--data={limits.memory}",
        f"--fsize={limits.disk}",
        f"--nofile={_OPEN_FILES}",
        "--core=0",
        "--memlock=0",
        "--msgqueue=0",
        f"--sigpending={_PENDING_SIGNALS}",
        # The low priority cannot be raised again.
        "--nice=0",
        "--rtprio=0",
    )


def _explain(stderr: str) -> str:
    output = " ".join(stderr.split())[:200]
    if "unknown option" in output.lower():
        return f"This bubblewrap is too old: {output}. {_BUBBLEWRAP_CURE}"
    return f"bubblewrap does not work here: {output}. {_NAMESPACES_CURE}"


def open_directories(paths: Iterable[str], *, hidden: Iterable[Path], held: ExitStack) -> dict[str, int]:
    """Return a descriptor of the directory at each path, which later changes of the path do not affect.

    ``held`` closes them. Blocks on file systems. Raises ``SandboxFault`` for a path that is no directory,
    contains a link, or is ``hidden``, below or above a hidden one.
    """
    hidden = tuple(hidden)
    found: dict[str, int] = {}
    for path in dict.fromkeys(paths):
        found[path] = _open_directory(path, held)
        if any(Path(path).is_relative_to(place) or place.is_relative_to(path) for place in hidden):
            raise SandboxFault(
                f"The directory {path!r} contains the gateway's own data; scripts cannot use it."
            )
    return found


def _open_directory(path: str, held: ExitStack) -> int:
    try:
        descriptor = _walk(path)
        held.callback(os.close, descriptor)
        # The directory may have been moved meanwhile.
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()) == path:
            return descriptor
    except OSError:
        pass
    raise SandboxFault(f"The directory {path!r} does not exist, or a part of its path is a link; correct it.")


def _walk(path: str) -> int:
    """Open the path step by step: ``open`` can refuse links only in the last part of a path."""
    # Inside the function, because only Linux has O_PATH, and the gateway runs elsewhere too.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    at = os.open("/", flags)
    for name in Path(path).parts[1:]:
        above = at
        try:
            at = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
    return at
