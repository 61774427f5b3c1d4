"""The transport to an MCP server that is a program: a line of JSON for each message, over its pipes.

The library's own transport reads lines of any length, stops at bytes that are no UTF-8, hands over the
gateway's HOME, and lets a program write as much as it likes; see docs/decisions/0022.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from torana.errors import ConfigInvalid
from torana.tools.mcp.entries import Server
from torana.tools.mcp.throttle import MESSAGE_LIMIT, Throttle

#: What the session reads and writes.
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

#: Messages that may wait until the program reads them; then it is given up.
_UNREAD = 64
#: Seconds for each step of an ending: that it ends by itself, on SIGTERM, on SIGKILL.
_GRACE = 1.0
#: What is logged of its standard error: characters of a line; seconds between two looks of 64 KiB at most.
_STDERR_LINE, _STDERR_PAUSE = 500, 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where programs run: the PATH in which they are found, and the directory that holds their homes."""

    path: str
    homes: Path


@asynccontextmanager
async def open_stdio(
    server: Server, surroundings: Surroundings, *, ended: Callable[[str], None]
) -> AsyncGenerator[Streams]:
    """Start the program and speak with it; at the end nothing of its process group is left.

    ``ended`` is told why the program speaks no more. Raises ``ConfigInvalid`` where it cannot be started.
    """
    program = _Program(server, await _started(server, surroundings), ended)
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_UNREAD)
    tasks = [
        asyncio.create_task(program.read(to_session)),
        asyncio.create_task(program.write(from_session)),
        asyncio.create_task(program.read_stderr()),
    ]
    try:
        yield incoming, outgoing
    finally:
        # Shielded from the cancellation that ends the gateway: no process may be left.
        ending = asyncio.ensure_future(program.end())
        try:
            await asyncio.shield(ending)
        finally:
            if not ending.done():
                program.kill()
                program.release()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (to_session, incoming, outgoing, from_session):
                stream.close()


async def _started(server: Server, surroundings: Surroundings) -> Process:
    assert server.command is not None  # noqa: S101 - a server of this transport has one
    command = await asyncio.to_thread(shutil.which, server.command, path=surroundings.path)
    if command is None:
        raise ConfigInvalid(f"there is no program {server.command}; install it, or give its whole path")
    home = surroundings.homes / server.name
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return await asyncio.create_subprocess_exec(
            command,
            *server.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=server.cwd or home,
            env=child_environment(server, path=surroundings.path, home=home),
            start_new_session=True,
            limit=MESSAGE_LIMIT,
        )
    except OSError as error:
        raise ConfigInvalid(f"{server.command} cannot be started: {error.strerror}") from error


def child_environment(server: Server, *, path: str, home: Path) -> Mapping[str, str]:
    """What the program finds in its environment: nothing of the gateway's but the PATH."""
    own = {name: value.get_secret_value() for name, value in server.env.items()}
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **own}


class _Program:
    """A running program and its pipes."""

    def __init__(self, server: Server, process: Process, ended: Callable[[str], None]) -> None:
        self._server = server
        self._process = process
        self._ended = ended
        self._last_words = ""
        self._ending = False

    async def read(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand its messages to the session; what is none is passed over."""
        assert self._process.stdout is not None  # noqa: S101 - it was started with pipes
        throttle = Throttle()
        garbage = 0
        reason = ""
        with to_session, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while not reason:
                try:
                    line = await self._process.stdout.readuntil(b"\n")
                except asyncio.IncompleteReadError:
                    reason = await self._why()
                    break
                except asyncio.LimitOverrunError:
                    reason = f"it sent a message of more than {MESSAGE_LIMIT // 1_048_576} MiB"
                    break
                await throttle.spend(len(line))
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    garbage += bool(line.strip())
                    if garbage == 1:
                        _log.warning(
                            "an MCP server writes what is no message", extra={"server": self._server.name}
                        )
                    continue
                await to_session.send(SessionMessage(message))
            self._ended(reason)

    async def write(self, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Hand the session's messages to it."""
        assert self._process.stdin is not None  # noqa: S101 - it was started with pipes
        with from_session, suppress(OSError):
            async for item in from_session:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(text.encode() + b"\n")
                await self._process.stdin.drain()

    async def read_stderr(self) -> None:
        """Log what it says beside its messages, slowly: one that floods it waits."""
        assert self._process.stderr is not None  # noqa: S101 - it was started with pipes
        while chunk := await self._process.stderr.read(65_536):
            lines = [line.strip()[:_STDERR_LINE] for line in chunk.decode(errors="replace").splitlines()]
            said = [self._server.masked(line) for line in lines if line]
            if said:
                self._last_words = said[-1]
                _log.debug("an MCP server says", extra={"server": self._server.name, "lines": said[:20]})
            await asyncio.sleep(_STDERR_PAUSE)

    async def end(self) -> None:
        """End it and all it has started: by the end of its input, SIGTERM, SIGKILL."""
        self._ending = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self._exits():
            self._signal(signal.SIGTERM)
            await self._exits()
        self.kill()  # also what it has left behind
        await self._exits()
        self.release()

    def kill(self) -> None:
        """End it and all it has started at once."""
        self._signal(signal.SIGKILL)

    def release(self) -> None:
        """Close our ends of its pipes, which asyncio keeps open while there is something to read."""
        transport = cast("Any", self._process)._transport  # noqa: SLF001 - nothing public leads there
        transport.close()

    async def _exits(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                # wait() would also wait for those who inherited its pipes.
                while self._process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return self._process.returncode is not None

    async def _why(self) -> str:
        if self._ending:
            return "it was ended"
        await self._exits()
        code = self._process.returncode
        how = "it closed its output" if code is None else f"it ended with exit code {code}"
        return f"{how}; its last words: {self._last_words}" if self._last_words else how

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
