"""One worker process, as the gateway uses it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: The maximum size of a reply, in bytes.
_REPLY_LIMIT = 4 * 1024 * 1024
#: Seconds that an ending process gets before it is killed.
_ENDING = 5.0
_PROGRAM = Path(__file__).with_name("program.py")


class WorkerError(Exception):
    """A call in a worker process has no result."""


class ProcessorTimeExceeded(WorkerError):
    """The call used more processor time than allowed."""


class MemoryExceeded(WorkerError):
    """The call used more memory than its worker may."""


class WorkerLost(WorkerError):
    """The worker process ended, or wrote an invalid reply."""


class CallFailed(WorkerError):
    """The function raised an exception."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        #: The name of the exception's class, and its message.
        self.kind = kind
        self.message = message


class Worker:
    """A process that calls functions, one at a time, with limits on memory and processor time.

    It has an empty environment, its own session, no open files of the gateway, and a lower priority. It ends
    when the gateway's process ends.
    """

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *, memory: int) -> Worker:
        """Start a process that may use ``memory`` bytes of address space."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-B",
            str(_PROGRAM),
            str(memory),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            limit=_REPLY_LIMIT,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    async def call(self, function: Callable[..., Any], arguments: Mapping[str, Any], *, seconds: int) -> Any:
        """Call a module's function with arguments of JSON types, and return its result of JSON types.

        ``seconds`` limits the processor time. Raises ``CallFailed`` for an exception of the function. After any
        other exception, including a cancellation, the worker takes no more calls: ``end`` it.
        """
        request = {
            "module": function.__module__,
            "file": sys.modules[function.__module__].__file__,
            "function": function.__name__,
            "arguments": arguments,
            "seconds": seconds,
        }
        line = await self._exchange(json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        try:
            reply = json.loads(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            raise await self._loss() from None
        if "value" in reply:
            return reply["value"]
        if reply["error"] == MemoryError.__name__:
            raise MemoryExceeded
        raise CallFailed(reply["error"], reply["message"])

    async def end(self) -> None:
        """Kill the process and wait for its end. Idempotent."""
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Kill the process. Idempotent."""
        if self._process.returncode is None:
            self._process.kill()

    async def _exchange(self, line: bytes) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101 - both are pipes
        assert stdout is not None  # noqa: S101
        try:
            stdin.write(line + b"\n")
            await stdin.drain()
            return await stdout.readline()
        except ConnectionError:  # the process has ended
            return b""
        except ValueError:  # the reply is longer than the limit
            self.kill()
            return b""

    async def _loss(self) -> WorkerError:
        """Return the reason for a missing reply.

        The process is probably ending by itself. It is not killed here: ``Popen.kill`` may collect the exit
        status that asyncio's watcher waits for.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING):
                await self._process.wait()
        await self.end()
        by_limit = self._process.returncode == -signal.SIGXCPU
        return ProcessorTimeExceeded() if by_limit else WorkerLost()
