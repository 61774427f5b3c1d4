"""All MCP servers of the settings: start, stop, status and approvals."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torana.errors import ConfigInvalid, NotFound
from torana.installation import this_installation
from torana.store.backup.archive import MCP_NAME
from torana.store.engine.database import Database, follow_changes
from torana.tools.mcp.entries import Server, search_path, valid_servers
from torana.tools.mcp.listing import ToolOffer
from torana.tools.mcp.pins import Pins
from torana.tools.mcp.supervisor import McpSupervisor, Opens


class McpServers:
    """The servers, each kept connected in the background from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        servers: Sequence[Server],
        database: Database,
        data_dir: Path,
        path: str,
        taken: frozenset[str],
        clock: Callable[[], datetime],
        head_start: float = 5.0,
    ) -> None:
        """``path`` is the PATH of programs, ``taken`` are the names of the agent's other tools.

        For ``head_start`` seconds after the start, turns wait for servers that connect for the first time.

        The servers' files are in ``mcp/`` under ``data_dir``. Raises ``ConfigInvalid`` if there are servers and
        the library is not installed.
        """
        if servers:
            check_library()
        homes = data_dir / MCP_NAME
        opener = partial(_opener, path=path, homes=homes)
        self.supervisors: Mapping[str, McpSupervisor] = {
            server.name: McpSupervisor(
                server=server,
                open_=opener,
                pins=Pins(
                    database=database,
                    path=homes / f"{server.name}.json",
                    server=server.name,
                    source=server.source,
                ),
                taken=taken,
                clock=clock,
            )
            for server in servers
        }
        self.servers: Mapping[str, Server] = {server.name: server for server in servers}
        self._tasks: list[asyncio.Task[None]] = []
        self._head_start = head_start
        #: The offers of each server that were last measured, and their size.
        self._sizes: dict[str, tuple[Sequence[ToolOffer], int]] = {}
        self._patient_until = 0.0

    def start(self, *, accepted_elsewhere: asyncio.Event | None = None) -> None:
        """Begin to connect, without waiting.

        ``accepted_elsewhere`` is set when another replica may have accepted tools.
        """
        self._patient_until = asyncio.get_running_loop().time() + self._head_start
        self._tasks = [asyncio.create_task(one.run()) for one in self.supervisors.values()]
        if accepted_elsewhere is not None and self.supervisors:
            self._tasks.append(
                asyncio.create_task(follow_changes(accepted_elsewhere, self._refresh, name="MCP tools"))
            )

    async def stop(self) -> None:
        """Disconnect from all servers, and end the programs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def wait_until_tried(self) -> None:
        """Wait until each first connection has succeeded or failed, at most until the end of the head start."""
        waiting = [one.tried.wait() for one in self.supervisors.values() if not one.tried.is_set()]
        left = self._patient_until - asyncio.get_running_loop().time()
        tasks = [asyncio.ensure_future(one) for one in waiting]
        if tasks and left > 0:
            await asyncio.wait(tasks, timeout=left)
        for task in tasks:
            task.cancel()

    def offered_size(self) -> int:
        """Return the number of characters that the offered tools add to a model request. Thread-safe."""
        return sum(self._size_of(name, one.offers) for name, one in self.supervisors.items())

    def check_held(self, name: str, held: str) -> None:
        """Raise ``NotFound`` for an unknown server, ``Conflict`` if ``held`` is not the waiting digest."""
        supervisor = self.supervisors.get(name)
        if supervisor is None:
            raise NotFound(f"there is no MCP server {name!r}; `torana mcp list` shows the servers")
        supervisor.check_held(held)

    async def approve(self, name: str, held: str) -> McpSupervisor:
        """Accept the server's waiting tools, if ``held`` is still their digest.

        Raises the errors of ``check_held``, and ``StoreUnavailable`` if the approval cannot be stored.
        """
        self.check_held(name, held)
        await self.supervisors[name].approve(held)
        return self.supervisors[name]

    async def _refresh(self) -> None:
        for supervisor in self.supervisors.values():
            await supervisor.refresh()

    def _size_of(self, name: str, offers: Sequence[ToolOffer]) -> int:
        measured, size = self._sizes.get(name, ((), 0))
        if offers is not measured:
            size = sum(offer.size for offer in offers)
            self._sizes[name] = offers, size
        return size


def check_servers(
    tables: Mapping[str, Mapping[str, Any]], *, file: Path | None, environ: Mapping[str, str]
) -> list[Server]:
    """Return the servers of the settings, without starting them; check their library and programs.

    Raises ``ConfigInvalid`` with one line for each fault of any server.
    """
    servers, faults = valid_servers(tables, file=file, environ=environ)
    if servers and not _has_library():
        faults.append(f"mcp: {_missing_library()}")
    faults += [
        f"mcp.{server.name}: there is no program {server.command}; install it, or set its absolute path"
        for server in servers
        if server.command is not None and shutil.which(server.command, path=search_path(environ)) is None
    ]
    if faults:
        raise ConfigInvalid("\n".join(faults))
    return servers


def check_library() -> None:
    """Raise ``ConfigInvalid`` with the install command if the library is missing."""
    if not _has_library():
        raise ConfigInvalid(f"mcp: {_missing_library()}")


def _has_library() -> bool:
    return find_spec("mcp") is not None and find_spec("jsonschema") is not None


async def _opener(*, path: str, homes: Path) -> Opens:
    """Return the function that connects; importing its library takes a second."""
    try:
        module = await asyncio.to_thread(import_module, "torana.tools.mcp.connection")
    except ImportError as error:
        if (error.name or "").startswith("torana"):
            raise
        raise ConfigInvalid(_missing_library()) from error
    environment = module.ProgramEnvironment(path=path, homes=homes)
    return partial(module.open_connection, environment=environment)


def _missing_library() -> str:
    command = this_installation().extra_command("mcp")
    return f"MCP servers need a library that is not installed; run: {command}"
