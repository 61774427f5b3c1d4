"""Keep one MCP server connected, and decide which of its tools are offered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from torana.errors import Conflict
from torana.supervision import ConnectionStatus, ConnectionSupervisor, Ended
from torana.tools.base import ToolError
from torana.tools.mcp.entries import Server
from torana.tools.mcp.listing import LeftOut, Listing, ToolOffer
from torana.tools.mcp.pins import Pins

if TYPE_CHECKING:
    from torana.tools.mcp.connection import Connection  # needs ``torana[mcp]``

#: Timeouts, in seconds, for connecting (a program may be downloaded first), and for a later list of tools.
_CONNECT, _LIST = 60.0, 15.0
#: The longest time, in seconds, between two checks of a quiet server, and the shortest time between two
#: lists. While a server keeps reporting a changed list, the shortest time doubles until it equals the
#: longest. It is at least ``_REST`` times the time of the list: a hostile one takes seconds of processor time.
_CHECK_INTERVAL, _MIN_LIST_INTERVAL = 60.0, 1.0
_REST = 20
#: Names of the library's errors for a failed connection; the library is not imported here.
_UNREACHED = ("ConnectError", "ConnectTimeout")

_log = logging.getLogger(__name__)


#: Opens a connection to a server. Raises ``ConfigInvalid`` for faults that a retry cannot fix.
Opens = Callable[[Server], AbstractAsyncContextManager["Connection"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpStatus(ConnectionStatus):
    """The status of a server. ``held`` is the digest of the tools that wait for approval, or None."""

    server: str
    transport: str
    calls: int = 0
    failed_calls: int = 0
    listing: Listing = field(default_factory=Listing)
    held: str | None = None


class McpSupervisor(ConnectionSupervisor[McpStatus]):
    """Keeps one server connected, from the start of the gateway to its end."""

    log_names = ("mcp_server", "server")

    def __init__(
        self,
        *,
        server: Server,
        open_: Callable[[], Awaitable[Opens]],
        pins: Pins,
        taken: frozenset[str],
        clock: Callable[[], datetime],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``open_`` imports the client, which takes a second; ``taken`` are the names of other tools."""
        status = McpStatus(server=server.name, transport=server.transport, since=clock())
        super().__init__(server.name, status, clock=clock, pause=pause)
        self._server = server
        self._open = open_
        self._pins = pins
        self._taken = taken
        self._connection: Connection | None = None
        #: The server's latest list of tools, including those that wait for approval.
        self._latest = Listing()
        #: The accepted digest of each tool; None before the first list.
        self._known: Mapping[str, str] | None = None
        #: Held while the offered tools are determined, which waits for the database.
        self._deciding = asyncio.Lock()
        #: Set when the first connection has succeeded or failed.
        self.tried = asyncio.Event()

    @property
    def offers(self) -> tuple[ToolOffer, ...]:
        return self.status.listing.offers if self._connection is not None else ()

    @property
    def waiting(self) -> tuple[ToolOffer, ...]:
        """Return the tools that wait for the operator's review."""
        return tuple(offer for offer in self._latest.offers if offer not in self.status.listing.offers)

    async def call(self, tool: str, arguments: Mapping[str, object], *, digest: str) -> str:
        """Return the result of the tool.

        Raises ``ToolError`` if it fails or cannot be called now, or if its definition has another digest.
        """
        offered = {offer.tool: offer.digest for offer in self.offers}
        if self._connection is None or tool not in offered:
            why = "does not offer this tool" if self._connection else "is not connected"
            raise ToolError(f"The MCP server {self._server.name} {why} at the moment; nothing was called.")
        if offered[tool] != digest:
            raise ToolError(
                f"The MCP server {self._server.name} has changed this tool since you called it; nothing was "
                "called. Read the new description, and call it again if it fits."
            )
        self.status = replace(self.status, calls=self.status.calls + 1)
        try:
            return await self._connection.call(tool, arguments)
        except ToolError:
            self.status = replace(self.status, failed_calls=self.status.failed_calls + 1)
            raise

    def check_held(self, held: str) -> None:
        """Raise ``Conflict`` if ``held`` is not the digest of the tools that wait for approval."""
        if self.status.held != held:
            raise Conflict("the tools that wait for approval have changed; run `torana mcp list` again")

    async def approve(self, held: str) -> None:
        """Accept the tools that wait for approval, whose digest is ``held``, and offer them.

        Raises ``Conflict`` and ``StoreUnavailable``.
        """
        async with self._deciding:
            self.check_held(held)
            self._offer(self._latest, await self._pins.accept(_digests(self._latest)))

    async def refresh(self) -> None:
        """Offer the tools that other replicas have accepted. Raises ``StoreUnavailable``."""
        async with self._deciding:
            if self._known is not None:
                await self._decide(self._latest)

    async def _connect(self) -> str:
        open_ = await self._open()
        async with asyncio.timeout(_CONNECT) as limit, open_(self._server) as connection:
            listing = await connection.list_tools(taken=self._taken)
            async with self._deciding:
                await self._decide(listing)
            limit.reschedule(None)
            self._connection = connection
            self._set_active()
            interval = _MIN_LIST_INTERVAL
            try:
                while not connection.state.ended:
                    spent = await self._check(connection)
                    pause = min(max(interval, _REST * spent), _CHECK_INTERVAL)
                    await _until(connection.state.has_ended, seconds=pause)
                    interval = (
                        min(2 * interval, _CHECK_INTERVAL)
                        if connection.state.check_needed.is_set()
                        else _MIN_LIST_INTERVAL
                    )
            finally:
                self._connection = None
            return connection.state.ended

    def _describe(self, error: BaseException) -> Ended:
        return Ended(reason=self._server.mask(_describe_error(error, self._server), limit=500))

    def _on_change(self) -> None:
        if self.status.state != "starting":
            self.tried.set()

    async def _check(self, connection: Connection) -> float:
        """Wait for a change, or for some time, and update the list of tools. Raises if the server is gone.

        Returns the seconds that the list took.
        """
        state = connection.state
        await _until(state.check_needed, seconds=_CHECK_INTERVAL)
        state.check_needed.clear()
        if state.ended:
            return 0.0
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(_LIST):
                listing = await connection.list_tools(taken=self._taken)
        except TimeoutError:
            if not connection.is_busy:  # a server that handles one request at a time answers later
                raise
        else:
            if listing != self._latest:
                async with self._deciding:
                    await self._decide(listing)
        return time.perf_counter() - begin

    async def _decide(self, listing: Listing) -> None:
        """Offer the tools that were accepted before; the first list is accepted as a whole."""
        known = await self._pins.load(first=_digests(listing))
        if (listing, known) != (self._latest, self._known):
            self._offer(listing, known)

    def _offer(self, listing: Listing, known: Mapping[str, str]) -> None:
        """Offer the tools whose digests are known, and hold the others back."""
        new = [offer for offer in listing.offers if known.get(offer.tool) != offer.digest]
        cure = f"run `torana mcp approve {self._server.name}` to accept it"
        held = [
            LeftOut(tool=offer.tool, reason=f"it {'changed' if offer.tool in known else 'is new'}; {cure}")
            for offer in new
        ]
        self._latest, self._known = listing, known
        offers = tuple(offer for offer in listing.offers if offer not in new)
        shown = Listing(offers=offers, left_out=(*held, *listing.left_out))
        waiting = "".join(sorted(offer.digest for offer in new))
        digest = sha256(waiting.encode()).hexdigest()[:16] if new else None
        self.status = replace(self.status, listing=shown, held=digest)
        for one in shown.left_out[:20]:
            extra = {"server": self._server.name, "tool": one.tool, "reason": one.reason}
            _log.warning("mcp_tool_not_offered", extra=extra)
        for offer in offers:
            for note in offer.notes:
                extra = {"server": self._server.name, "tool": offer.tool, "note": note}
                _log.warning("mcp_tool_description_edited", extra=extra)


async def _until(event: asyncio.Event, *, seconds: float) -> None:
    """Wait for the event, at most for this time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _digests(listing: Listing) -> dict[str, str]:
    return {offer.tool: offer.digest for offer in listing.offers}


def _describe_error(error: BaseException, server: Server) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if type(error).__name__ in _UNREACHED and server.url:
        address = urlsplit(server.url)
        why = str(error) or "no answer"
        cure = "start the server, or correct its url"
        return f"cannot connect to {address.scheme}://{address.netloc}: {why}; {cure}"
    if isinstance(error, ConnectionError):
        return str(error)
    return f"{type(error).__name__}: {error}"
