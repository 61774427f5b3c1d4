"""Run one process, and stop it when it exceeds its limits of time, memory, files or output."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TypeVar

from torana.aio import wait_uncancellable
from torana.tools.sandbox import usage
from torana.tools.sandbox.job import Outcome, SandboxLimits, Stopped

#: Seconds between two measurements, and of the kernel's memory: a script can fill the kernel's share for epoll
#: watches within 0.2 seconds.
_CHECK_INTERVAL, _KERNEL_INTERVAL = 0.1, 0.02
#: Seconds for the accurate measurement of memory, if the fast one is over the limit. A script can slow it down.
_MEASURE_TIMEOUT = 0.5
#: Seconds within which the pipes of a killed process must close.
_CLOSE_TIMEOUT = 5.0
_CHUNK = 64 * 1024

T = TypeVar("T")


@dataclass(slots=True)
class _Output:
    kept: bytearray = field(default_factory=bytearray)
    size: int = 0


class BoundedProcess:
    """Runs a command line of bubblewrap to its end. For one run only."""

    def __init__(self, *, limits: SandboxLimits, kernel_before: int | None = None) -> None:
        """``kernel_before`` is the kernel's memory before the run, by default the current one."""
        self._limits = limits
        self._stopped: Stopped | None = None
        self._process: subprocess.Popen[bytes]
        self._flood = 0
        #: Bytes in the run's sockets at the last measurement.
        self._in_sockets = 0
        self._kernel_before = usage.kernel_memory() if kernel_before is None else kernel_before
        self._is_lowered = False
        #: Descriptors of killed processes.
        self._dying: list[int] = []
        #: One thread for each watcher, and one for the end.
        self._threads = ThreadPoolExecutor(5, "torana-sandbox")

    async def run(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        stdin: bytes,
        descriptors: Sequence[int],
        disks: usage.Disks | None = None,
    ) -> Outcome:
        """Start ``command`` with only ``environ`` as environment, and wait for its end.

        ``disks`` are the host's file systems that it can write to. All its processes are dead afterwards, even
        after a cancellation: the end of bubblewrap ends its process namespace, including daemons and processes
        that ignore signals. Raises ``OSError`` if the command cannot be started.
        """
        started = time.monotonic()
        with sealed_file(stdin) as given:
            # asyncio's function is not used: if descriptors are passed on, uvloop leaves others open in the
            # child.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - a few milliseconds; our own words
                command,
                env=environ,
                pass_fds=descriptors,
                cwd="/",
                start_new_session=True,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        clock = asyncio.get_running_loop().call_later(self._limits.seconds, self._stop, "time")
        outputs = _Output(), _Output()
        pipes = self._process.stdout, self._process.stderr
        reading = [asyncio.create_task(self._read_pipe(*pair)) for pair in zip(pipes, outputs, strict=True)]
        watching = [asyncio.create_task(self._watch(writes=disks is not None))]
        watching += [asyncio.create_task(self._watch_kernel()), asyncio.create_task(self._watch_sockets())]
        if disks is not None:
            watching.append(asyncio.create_task(self._watch_disks(disks)))
        try:
            await _wait_for_exit(self._process.pid, unless=watching)
            await asyncio.wait(reading, timeout=_CLOSE_TIMEOUT)
        finally:
            clock.cancel()
            self._kill()
            for task in (*watching, *reading):
                task.cancel()
            await asyncio.gather(*watching, *reading, return_exceptions=True)
            code = await wait_uncancellable(self._in_thread(self._wait_until_gone))
            self._threads.shutdown(wait=False)
        return Outcome(
            code=code if code >= 0 else 128 - code,
            stopped=self._stopped,
            seconds=time.monotonic() - started,
            stdout=bytes(outputs[0].kept),
            stderr=bytes(outputs[1].kept),
            stdout_bytes=outputs[0].size,
            stderr_bytes=outputs[1].size,
        )

    async def _read_pipe(self, pipe: IO[bytes] | None, output: _Output) -> None:
        stream = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stream)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        with closing(transport):
            while chunk := await stream.read(_CHUNK):
                output.kept += chunk[: self._limits.output - len(output.kept)]
                output.size += len(chunk)
                self._flood += len(chunk)
                if self._flood > self._limits.flood:
                    self._stop("output")

    async def _watch(self, *, writes: bool) -> None:
        while True:
            pids, exceeded = await self._in_thread(partial(self._exceeded, writes=writes))
            for bound in exceeded:
                if bound != "memory" or await self._takes_more(pids):
                    self._stop(bound)
            await asyncio.sleep(_CHECK_INTERVAL)

    async def _takes_more(self, pids: Sequence[int]) -> bool:
        """Return whether the processes take more memory than the limit, or measuring that takes too long."""
        measuring = self._in_thread(lambda: sum(map(usage.proportional, pids)))
        done, _ = await asyncio.wait([measuring], timeout=_MEASURE_TIMEOUT)
        return not done or measuring.result() > self._room

    def _exceeded(self, *, writes: bool) -> tuple[Sequence[int], Sequence[Stopped]]:
        """Return the processes, and the exceeded limits, the first one found first.

        The memory counts shared pages several times.
        """
        most = usage.PROCESS_FACTOR * self._limits.processes
        tree = usage.process_tree(self._process.pid, limit=most)
        pids = tree.processes
        if tree.threads > most:
            return pids, ["processes"]
        self._is_lowered = self._is_lowered or bool(pids and usage.lower_session(pids[0]))
        exceeded: list[Stopped] = []
        if sum(map(usage.resident, pids)) > self._room:
            exceeded.append("memory")
        if writes and sum(map(usage.bytes_written, pids)) > self._limits.disk:
            exceeded.append("written")
        # A single process may still be building the sandbox, and would show the host's file systems.
        if len(pids) > 1 and usage.files(pids[0]) > self._limits.files:
            exceeded.append("files")
        return pids, exceeded

    @property
    def _room(self) -> int:
        """Return the bytes of memory that the processes may take."""
        return self._limits.memory - self._in_sockets

    async def _watch_kernel(self) -> None:
        while True:
            if await self._in_thread(usage.kernel_memory) - self._kernel_before > self._limits.kernel:
                self._stop("kernel")
            await asyncio.sleep(_KERNEL_INTERVAL)

    async def _watch_sockets(self) -> None:
        # A separate task, because the system searches all TCP connections of the machine, which can take long.
        while True:
            # The first child has its own network from its start.
            for pid in usage.children(self._process.pid)[:1]:
                self._in_sockets = await self._in_thread(partial(usage.sockets, pid))
            await asyncio.sleep(_CHECK_INTERVAL)

    async def _watch_disks(self, disks: usage.Disks) -> None:
        # A separate task, because a network file system may block.
        while True:
            if await self._in_thread(partial(disks.is_filling, self._limits)):
                self._stop("filled")
            await asyncio.sleep(_CHECK_INTERVAL)

    def _in_thread(self, look: Callable[[], T]) -> asyncio.Future[T]:
        """Call ``look`` in a thread of this run.

        The duration of reads in /proc depends on the script, and the shared threads may be busy.
        """
        return asyncio.get_running_loop().run_in_executor(self._threads, look)

    def _stop(self, why: Stopped) -> None:
        self._stopped = self._stopped or why
        self._kill()

    def _kill(self) -> None:
        """Kill bubblewrap and its child, the first process of the sandbox, with which all others end.

        A child that bubblewrap has just created waits for a message, possibly without end. It may not yet be
        listed as a child, but is in bubblewrap's process group until it continues.
        """
        if self._process.poll() is None:
            for pid in usage.children(self._process.pid):
                with suppress(OSError):
                    self._dying.append(os.pidfd_open(pid))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _wait_until_gone(self) -> int:
        """Wait until the killed processes are gone, and return the exit code of bubblewrap.

        A first process ends after all others of its namespace. On a busy machine, the end of processes with a
        low priority takes time.
        """
        for descriptor in self._dying:
            end = select.poll()
            end.register(descriptor, select.POLLIN)
            end.poll(_CLOSE_TIMEOUT * 1000)
            os.close(descriptor)
        return self._process.wait()


@contextmanager
def sealed_file(data: bytes) -> Generator[int]:
    """Yield a descriptor of an in-memory file with ``data`` that cannot be changed, for a child process."""
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        yield descriptor
    finally:
        os.close(descriptor)


async def _wait_for_exit(pid: int, *, unless: Iterable[asyncio.Task[None]]) -> None:
    """Wait until the child has ended, without reaping it.

    Raises the error of a task that fails before.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    descriptor = os.pidfd_open(pid)
    try:
        loop.add_reader(descriptor, lambda: ended.done() or ended.set_result(None))
        done, _ = await asyncio.wait([ended, *unless], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
