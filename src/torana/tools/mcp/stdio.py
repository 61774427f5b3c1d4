"""The transport to an MCP server that is a program: one line of JSON for each message, over pipes.

The library's own transport has no limit for lines or for the output, stops at invalid UTF-8, and passes the
gateway's HOME to the program; see docs/decisions/0022. Programs that a killed gateway left running are found in
/proc, so only on Linux.
"""

from __future__ import annotations

import asyncio
import json
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
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from torana.errors import ConfigInvalid
from torana.json_bounds import count_values, without_deep_values
from torana.tools.mcp.entries import Server
from torana.tools.mcp.sanitize import replace_lone_surrogates
from torana.tools.mcp.throttle import MESSAGE_LIMIT, TOO_MANY_VALUES, VALUES_LIMIT, Throttle

#: The streams of a session, to read and to write.
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

#: The directory of the records of running programs; no server has this name.
_RUNNING = ".running"
#: Maximum number of messages that the program has not read; above it the connection fails.
_UNREAD = 64
#: Seconds for each step of the shutdown: exit, SIGTERM, SIGKILL.
_GRACE = 1.0
#: Limits of the logged standard error: characters of a line, and seconds between reads of at most 64 KiB.
_STDERR_LINE, _STDERR_PAUSE = 500, 0.1
#: Seconds to wait for the rest of the standard error of a program that has ended.
_LAST_WORDS = 1.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: The position of the start time behind the name of the program (proc(5), ``stat``).
_STARTED = 19

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnvironment:
    """The environment of programs: their PATH, and the directory of their home directories."""

    path: str
    homes: Path


@asynccontextmanager
async def open_stdio(
    server: Server, environment: ProgramEnvironment, *, ended: Callable[[str], None]
) -> AsyncGenerator[Streams]:
    """Start the program and connect to its pipes; at the end its process group is killed.

    A program of this server that a killed gateway left running is killed before. ``ended`` receives the reason
    when the program ends. Raises ``ConfigInvalid`` if it cannot be started.
    """
    program = _Program(server, await _start_process(server, environment), ended)
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
        # Shielded from cancellation, so that no process remains.
        ending = asyncio.ensure_future(program.end())
        try:
            await asyncio.shield(ending)
        finally:
            if not ending.done():
                program.kill()
                program.release()
            for task in tasks:
                task.cancel()
            await asyncio.gather(ending, *tasks, return_exceptions=True)
            for stream in (to_session, incoming, outgoing, from_session):
                stream.close()


async def _start_process(server: Server, environment: ProgramEnvironment) -> Process:
    assert server.command is not None  # noqa: S101 - set for this transport
    record = environment.homes / _RUNNING / server.name
    await asyncio.to_thread(end_left_program, record)
    command = await asyncio.to_thread(shutil.which, server.command, path=environment.path)
    if command is None:
        raise ConfigInvalid(f"there is no program {server.command}; install it, or set its absolute path")
    home = environment.homes / server.name
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            command,
            *server.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=server.cwd or home,
            env=child_environment(server, path=environment.path, home=home),
            start_new_session=True,
            limit=MESSAGE_LIMIT,
        )
    except OSError as error:
        raise ConfigInvalid(f"{server.command} cannot be started: {error.strerror}") from error
    note_program(record, process.pid)
    return process


def child_environment(server: Server, *, path: str, home: Path) -> Mapping[str, str]:
    """Return the program's environment variables: of the gateway's variables only PATH."""
    own = {name: value.get_secret_value() for name, value in server.env.items()}
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **own}


def _parse(line: bytes) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(replace_lone_surrogates(line), by_name=False)
    except (ValueError, RecursionError):
        return None


def _refuse(response: bytes) -> JSONRPCError | None:
    """Return an error in place of a response with too many values; None if it names no request."""
    try:
        found = json.loads(without_deep_values(response.decode(errors="replace"), 1))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "method" in found:  # a request of the server has an id, too
        return None
    request: object = cast("dict[str, object]", found).get("id")
    if not isinstance(request, int) or isinstance(request, bool):
        return None
    error = ErrorData(code=INVALID_REQUEST, message=TOO_MANY_VALUES)
    return JSONRPCError(jsonrpc="2.0", id=request, error=error)


class _Program:
    def __init__(self, server: Server, process: Process, ended: Callable[[str], None]) -> None:
        self._server = server
        self._process = process
        self._ended = ended
        self._last_words = ""
        self._stderr_ended = asyncio.Event()
        self._ending = False

    async def read(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Pass the program's messages to the session; other output is skipped."""
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
                values = count_values(line, VALUES_LIMIT)
                await throttle.spend(len(line), values=values)
                few = values <= VALUES_LIMIT
                message = _parse(line) if few else await asyncio.to_thread(_refuse, line)
                if message is not None:
                    await to_session.send(SessionMessage(message))
                elif line.strip():
                    garbage += 1
                    if garbage == 1:
                        _log.warning("mcp_message_invalid", extra={"server": self._server.name})
            self._ended(reason)

    async def write(self, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was started with pipes
        with from_session, suppress(OSError):
            async for item in from_session:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(text.encode() + b"\n")
                await self._process.stdin.drain()

    async def read_stderr(self) -> None:
        """Log the program's standard error, at a limited rate; a program that writes more must wait."""
        assert self._process.stderr is not None  # noqa: S101 - it was started with pipes
        while chunk := await self._process.stderr.read(65_536):
            lines = [line.strip() for line in chunk.decode(errors="replace").splitlines()]
            output = [self._server.mask(line, limit=_STDERR_LINE) for line in lines if line]
            if output:
                self._last_words = output[-1]
                _log.debug("mcp_server_stderr", extra={"server": self._server.name, "lines": output[:20]})
            await asyncio.sleep(_STDERR_PAUSE)
        self._stderr_ended.set()

    async def end(self) -> None:
        """End the program and its process group: close its input, then SIGTERM, then SIGKILL."""
        self._ending = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self._exits():
            self._signal(signal.SIGTERM)
            await self._exits()
        self.kill()  # also remaining processes of its group
        await self._exits()
        self.release()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def release(self) -> None:
        """Close our ends of the pipes, which asyncio keeps open while there is unread data."""
        transport = cast("Any", self._process)._transport  # noqa: SLF001 - there is no public attribute
        transport.close()

    async def _exits(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                # wait() would also wait for other processes that inherited the pipes.
                while self._process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return self._process.returncode is not None

    async def _why(self) -> str:
        if self._ending:
            return "the gateway ended it"
        await self._exits()
        code = self._process.returncode
        if code is not None:  # its children may keep the standard error open
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stderr_ended.wait(), _LAST_WORDS)
        how = "it closed its output" if code is None else f"it ended with exit code {code}"
        return f"{how}; its last error output: {self._last_words}" if self._last_words else how

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def note_program(file: Path, pid: int) -> None:
    """Write the identity of a running program, the leader of its process group, to ``file``. Blocks."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(_identity(pid))


def end_left_program(file: Path) -> None:
    """Kill the process group of the program in ``file`` if it still runs. Blocks."""
    with suppress(OSError, ValueError):
        noted = file.read_text()
        pid = int(noted.partition(" ")[0])
        # Another process may have the same number by now.
        if pid > 0 and noted == _identity(pid) and os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)


def _identity(pid: int) -> str:
    """Return the number and the start of a process. Raises ``OSError`` if it does not exist."""
    # The name of the program, in parentheses, may be no UTF-8.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return f"{pid} {fields[_STARTED]} {_BOOT.read_text().strip()}"
