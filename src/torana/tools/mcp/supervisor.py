"""Keeps one MCP server connected, and knows what of it is offered."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal, Protocol, cast
from urllib.parse import urlsplit

from torana.errors import ConfigInvalid
from torana.tools.base import ToolError
from torana.tools.mcp.entries import Server
from torana.tools.mcp.offers import LeftOut, Listing, Offer
from torana.tools.mcp.pins import Pins

ServerState = Literal["starting", "active", "backing_off", "refused"]

#: Seconds before the next connection: twice as many each time, up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 300.0
#: Seconds before a server is tried again that the settings, or this machine, do not fit.
_REFUSED_PAUSE = 600.0
#: Seconds for connecting (a program may have to be downloaded), and for a list of tools later on.
_CONNECT, _LIST = 60.0, 15.0
#: After so many seconds in which it held, a connection counts as good.
_GOOD = 60.0
#: Seconds between two looks at a quiet server, and at least between two lists: changes come in heaps.
_LOOK, _CALM = 60.0, 1.0
#: Seconds that a connection gets to end in; after that it is left to itself.
_END = 5.0
#: What the library raises where nobody takes a connection; it is not imported here.
_UNREACHED = ("ConnectError", "ConnectTimeout")

_log = logging.getLogger(__name__)


class _Signs(Protocol):
    look: asyncio.Event
    ended: str


class Connects(Protocol):
    """A connection: see ``connection.Connection``."""

    signs: _Signs

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way."""
        ...

    async def listed(self, *, taken: frozenset[str]) -> Listing:
        """What of the server's tools may be offered."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """What the tool returned. Raises ``ToolError``."""
        ...


class Opens(Protocol):
    """Connects to a server."""

    def __call__(self, server: Server) -> AbstractAsyncContextManager[Connects]:
        """Raises ``ConfigInvalid`` where it never will be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a server stands. ``reason`` is why it is not active, ``next_try`` when it is tried again.

    ``held`` identifies what ``approve`` would let in; None where nothing waits for it.
    """

    server: str
    transport: str
    state: ServerState
    since: datetime
    reason: str | None = None
    next_try: datetime | None = None
    connections: int = 0
    calls: int = 0
    failed_calls: int = 0
    listing: Listing = field(default_factory=Listing)
    held: str | None = None


class Supervisor:
    """One server, from the start of the gateway to its end."""

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
        """``open_`` loads what connects, which takes a second; ``taken`` are the names of the other tools."""
        self._server = server
        self._open = open_
        self._pins = pins
        self._taken = taken
        self._clock = clock
        self._pause = pause
        self._connection: Connects | None = None
        #: What the server offers by its latest list, before what was not seen yet is held back.
        self._latest = Listing()
        self.status = Status(server=server.name, transport=server.transport, state="starting", since=clock())
        #: Set when it is known how the first connection went.
        self.tried = asyncio.Event()

    async def run(self) -> None:
        """Connect again and again until cancelled."""
        failures = 0
        while True:
            begun = asyncio.get_running_loop().time()
            state, reason = await self._kept()
            held = asyncio.get_running_loop().time() - begun
            failures = 0 if self.status.state == "active" and held > _GOOD else failures + 1
            wait = _jittered(_REFUSED_PAUSE if state == "refused" else _backoff(failures - 1))
            self._tell(state, reason=reason, next_try=self._clock() + timedelta(seconds=wait))
            self.tried.set()
            await self._pause(wait)
            self._tell("starting")

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What can be called at the moment."""
        return self.status.listing.offers if self._connection is not None else ()

    @property
    def waiting(self) -> tuple[Offer, ...]:
        """What the server offers, and nobody has seen yet."""
        return tuple(offer for offer in self._latest.offers if offer not in self.status.listing.offers)

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """What the tool returned. Raises ``ToolError`` where it failed, or cannot be called now."""
        offered = any(offer.tool == tool for offer in self.offers)
        if self._connection is None or not offered:
            why = "does not offer this tool" if self._connection else "is not connected"
            raise ToolError(f"The MCP server {self._server.name} {why} at the moment; nothing was called.")
        self.status = replace(self.status, calls=self.status.calls + 1)
        try:
            return await self._connection.call(tool, arguments)
        except ToolError:
            self.status = replace(self.status, failed_calls=self.status.failed_calls + 1)
            raise

    def approve(self) -> None:
        """Offer from now on what was held back. Raises ``OSError``."""
        self._pins.keep({offer.tool: offer.digest for offer in self._latest.offers})
        self._offer(self._latest)

    async def _kept(self) -> tuple[ServerState, str]:
        """One connection, in a task of its own, to its end: how the server stands then, and why."""
        task = asyncio.create_task(self._connected(), name=f"mcp {self._server.name}")
        try:
            await asyncio.wait({task})
        finally:
            self._connection = None
            await _ended(task)
        if task.cancelled():
            return "backing_off", "the connection was cut off from within"
        failure = task.exception()
        if failure is None:
            return "backing_off", task.result()
        error = _innermost(failure)
        _log.debug("the connection to an MCP server failed", exc_info=error)
        if isinstance(error, ConfigInvalid):
            return "refused", error.detail
        return "backing_off", self._server.masked(_told(error, self._server))[:500]

    async def _connected(self) -> str:
        """Connect, and keep what is offered true; why it ended."""
        open_ = await self._open()
        async with asyncio.timeout(_CONNECT) as limit, open_(self._server) as connection:
            self._offer(await connection.listed(taken=self._taken))
            limit.reschedule(None)
            self._connection = connection
            self.status = replace(self.status, connections=self.status.connections + 1)
            self._tell("active")
            self.tried.set()
            while not connection.signs.ended:
                await self._look_at(connection)
            return connection.signs.ended

    async def _look_at(self, connection: Connects) -> None:
        """Wait until there is something to see, and ask the server what it offers. Raises where it is gone."""
        signs = connection.signs
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                await signs.look.wait()
        signs.look.clear()
        if signs.ended:
            return
        try:
            async with asyncio.timeout(_LIST):
                listing = await connection.listed(taken=self._taken)
        except TimeoutError:
            if not connection.is_busy:  # one that does a thing at a time answers later
                raise
        else:
            if listing != self._latest:
                self._offer(listing)
        await asyncio.sleep(_CALM)

    def _offer(self, listing: Listing) -> None:
        """Offer what was seen before; all of it where nothing was."""
        known = self._pins.known()
        if known is None:
            known = {offer.tool: offer.digest for offer in listing.offers}
            self._pins.keep(known)
        new = [offer for offer in listing.offers if known.get(offer.tool) != offer.digest]
        cure = f"`torana mcp approve {self._server.name}` offers it"
        held = [
            LeftOut(tool=offer.tool, reason=f"it {'changed' if offer.tool in known else 'is new'}; {cure}")
            for offer in new
        ]
        self._latest = listing
        offers = tuple(offer for offer in listing.offers if offer not in new)
        shown = Listing(offers=offers, left_out=(*held, *listing.left_out))
        self.status = replace(self.status, listing=shown, held=_digest([offer.digest for offer in new]))
        for one in shown.left_out[:20]:
            extra = {"server": self._server.name, "tool": one.tool, "reason": one.reason}
            _log.warning("a tool of an MCP server is not offered", extra=extra)
        for offer in offers:
            for note in offer.notes:
                extra = {"server": self._server.name, "tool": offer.tool, "note": note}
                _log.warning("a tool of an MCP server is offered in other words", extra=extra)

    def _tell(self, state: ServerState, *, reason: str | None = None, next_try: datetime | None = None) -> None:
        before = self.status
        self.status = replace(before, state=state, since=self._clock(), reason=reason, next_try=next_try)
        if state != "starting":
            level = logging.INFO if state == "active" else logging.WARNING
            extra = {"server": self._server.name, "state": state, "reason": reason}
            _log.log(level, "mcp server %s", state.replace("_", " "), extra=extra)


def _innermost(error: BaseException) -> BaseException:
    """What went wrong inside the library's task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _told(error: BaseException, server: Server) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if type(error).__name__ in _UNREACHED and server.url:
        address = urlsplit(server.url)
        why = str(error) or "no answer"
        cure = "start the server there, or mend its url"
        return f"cannot connect to {address.scheme}://{address.netloc}: {why}; {cure}"
    if isinstance(error, ConnectionError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _digest(digests: Sequence[str]) -> str | None:
    return sha256("".join(sorted(digests)).encode()).hexdigest()[:16] if digests else None


async def _ended(task: asyncio.Task[str]) -> None:
    """End the connection's task; one that will not end is left to itself."""
    task.cancel()
    _, left = await asyncio.wait({task}, timeout=_END)
    if left:
        _log.error("the connection to an MCP server does not end", extra={"task": task.get_name()})


def _backoff(failures: int) -> float:
    return min(_LAST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 20))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
