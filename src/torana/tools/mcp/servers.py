"""All MCP servers of the settings, for those who start them, call them, and ask how they stand."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from torana.errors import ConfigInvalid, Conflict, NotFound, StoreUnavailable
from torana.store.backup import MCP_NAME
from torana.tools.mcp.entries import Server, search_path, sound_servers
from torana.tools.mcp.offers import LeftOut, Offer
from torana.tools.mcp.pins import Pins
from torana.tools.mcp.supervisor import Opens, Status, Supervisor

#: The line that installs what connects.
INSTALL = "MCP servers need a library that is not installed; install it with: pip install 'torana[mcp]'"


class McpServers:
    """The servers, each kept connected in the background from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        servers: Sequence[Server],
        data_dir: Path,
        path: str,
        taken: frozenset[str],
        clock: Callable[[], datetime],
        head_start: float = 5.0,
    ) -> None:
        """``path`` is the PATH of programs, ``taken`` are the names of the agent's other tools.

        For ``head_start`` seconds after the start turns wait for servers that have not been tried yet.

        What is kept of each is in ``mcp/`` under ``data_dir``. Raises ``ConfigInvalid`` where there are
        servers, and the library is not installed.
        """
        if servers:
            check_library()
        homes = data_dir / MCP_NAME
        opener = partial(_opener, path=path, homes=homes)
        self.supervisors: Mapping[str, Supervisor] = {
            server.name: Supervisor(
                server=server,
                open_=opener,
                pins=Pins(path=homes / f"{server.name}.json", source=server.source),
                taken=taken,
                clock=clock,
            )
            for server in servers
        }
        self.servers: Mapping[str, Server] = {server.name: server for server in servers}
        self._tasks: list[asyncio.Task[None]] = []
        self._head_start = head_start
        #: By server, the offers that were measured last, and their size.
        self._sizes: dict[str, tuple[Sequence[Offer], int]] = {}
        self._patient_until = 0.0

    def start(self) -> None:
        """Begin to connect; waits for nothing."""
        self._patient_until = asyncio.get_running_loop().time() + self._head_start
        self._tasks = [asyncio.create_task(one.run()) for one in self.supervisors.values()]

    async def stop(self) -> None:
        """Disconnect, and end the programs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def settled(self) -> None:
        """Wait until each server was tried once, as long as the head start lasts; later not at all."""
        waiting = [one.tried.wait() for one in self.supervisors.values() if not one.tried.is_set()]
        left = self._patient_until - asyncio.get_running_loop().time()
        tasks = [asyncio.ensure_future(one) for one in waiting]
        if tasks and left > 0:
            await asyncio.wait(tasks, timeout=left)
        for task in tasks:
            task.cancel()

    def offered_size(self) -> int:
        """The characters that all offered tools take of a request to the model. Any thread may ask."""
        return sum(self._size_of(name, one.offers) for name, one in self.supervisors.items())

    def status(self) -> list[dict[str, Any]]:
        """How each stands, as in ``/v1/status``."""
        return [_brief(one.status, offers=one.offers) for one in self.supervisors.values()]

    def listed(self) -> list[dict[str, Any]]:
        """How each stands, with its tools and what is not offered of them, as in ``/v1/mcp``."""
        return [self._record(one) for one in self.supervisors.values()]

    def check_held(self, name: str, held: str) -> None:
        """Raise ``NotFound`` for an unknown server, ``Conflict`` where ``held`` is not what waits."""
        supervisor = self.supervisors.get(name)
        if supervisor is None:
            raise NotFound(f"there is no MCP server {name!r}; `torana mcp list` names them")
        if supervisor.status.held != held:
            raise Conflict("something else waits to be approved, or nothing; look at `torana mcp list` again")

    def approve(self, name: str, held: str) -> dict[str, Any]:
        """Offer what the server changed, as it was seen.

        Raises as ``check_held``, and ``StoreUnavailable`` where it cannot be kept.
        """
        self.check_held(name, held)
        try:
            self.supervisors[name].approve()
        except OSError as error:
            raise StoreUnavailable(f"the approval cannot be kept: {error}") from error
        return self._record(self.supervisors[name])

    def _size_of(self, name: str, offers: Sequence[Offer]) -> int:
        measured, size = self._sizes.get(name, ((), 0))
        if offers is not measured:
            size = sum(offer.size for offer in offers)
            self._sizes[name] = offers, size
        return size

    @staticmethod
    def _record(supervisor: Supervisor) -> dict[str, Any]:
        status = supervisor.status
        return _brief(status, offers=supervisor.offers) | {
            "held": status.held,
            "offered": [_offer(offer) for offer in status.listing.offers],
            "waiting": [_offer(offer) for offer in supervisor.waiting],
            "leftOut": [_left_out(one) for one in status.listing.left_out],
        }


def check_servers(
    tables: Mapping[str, Mapping[str, Any]], *, file: Path | None, environ: Mapping[str, str]
) -> list[Server]:
    """The servers that the settings name, where their library and their programs are there too.

    Nothing is started. Raises ``ConfigInvalid`` with the faults of all of them, a line for each.
    """
    servers, faults = sound_servers(tables, file=file, environ=environ)
    if servers and not _has_library():
        faults.append(f"mcp: {INSTALL}")
    faults += [
        f"mcp.{server.name}: there is no program {server.command}; install it, or give its whole path"
        for server in servers
        if server.command is not None and shutil.which(server.command, path=search_path(environ)) is None
    ]
    if faults:
        raise ConfigInvalid("\n".join(faults))
    return servers


def check_library() -> None:
    """Raise ``ConfigInvalid`` with the line that installs the library where it is not there."""
    if not _has_library():
        raise ConfigInvalid(f"mcp: {INSTALL}")


def _has_library() -> bool:
    return find_spec("mcp") is not None and find_spec("jsonschema") is not None


async def _opener(*, path: str, homes: Path) -> Opens:
    """What connects; its library takes a second to import."""
    try:
        module = await asyncio.to_thread(import_module, "torana.tools.mcp.connection")
    except ImportError as error:
        if (error.name or "").startswith("torana"):
            raise
        raise ConfigInvalid(INSTALL) from error
    return _opens(module, path=path, homes=homes)


def _opens(module: ModuleType, *, path: str, homes: Path) -> Opens:
    surroundings = module.Surroundings(path=path, homes=homes)
    return partial(module.open_connection, surroundings=surroundings)


def _brief(status: Status, *, offers: Sequence[Offer]) -> dict[str, Any]:
    return {
        "server": status.server,
        "transport": status.transport,
        "state": status.state,
        "since": status.since.isoformat(),
        "reason": status.reason,
        "nextTry": status.next_try and status.next_try.isoformat(),
        "connections": status.connections,
        "calls": status.calls,
        "failedCalls": status.failed_calls,
        "tools": len(offers),
    }


def _offer(offer: Offer) -> dict[str, Any]:
    return {
        "name": offer.name,
        "tool": offer.tool,
        "permission": offer.permission,
        "idempotent": offer.idempotent,
        "description": offer.description,
        "inputSchema": dict(offer.schema),
        "notes": list(offer.notes),
        "withheld": list(offer.withheld),
    }


def _left_out(one: LeftOut) -> dict[str, Any]:
    return {"tool": one.tool, "reason": one.reason}
