"""A running gateway: it listens at once, loads behind that, and stops in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn

from torana import bare_http
from torana.cli.process_secrets import erase_variables
from torana.config import Loaded
from torana.errors import OperatorError, Starting
from torana.health import health_body

if TYPE_CHECKING:
    from torana.app import App

#: Seconds that running turns and open connections get when the gateway stops.
_CONNECTION_GRACE = 5

_log = logging.getLogger(__name__)


class _Build(Protocol):
    """Makes the gateway behind the door, in a thread."""

    def __call__(self, loaded: Loaded, *, started: float) -> App: ...


def _build(loaded: Loaded, *, started: float) -> App:
    # The one import of ours inside a function: everything heavy hangs on it, and we listen already.
    from torana.app import build

    return build(loaded, started=started)


class Gateway:
    """One gateway on one socket, from its start to its end.

    It listens and answers ``/health`` while ``build`` still works; every other request is held for ``hold``
    seconds at most. The first signal lets running turns end, the second one leaves them to the next start.
    SIGHUP has the settings read again, unless it tells that the terminal is gone: that ends it like any other.
    """

    def __init__(
        self,
        *,
        loaded: Loaded,
        on_ready: Callable[[], None],
        on_built: Callable[[], None] | None = None,
        on_closed: Callable[[], None] | None = None,
        build: _Build = _build,
        hold: float = 15.0,
    ) -> None:
        """``on_built`` is called before anything is begun, ``on_ready`` when everything is, and ``on_closed``
        when all of that is closed again; ``run`` may take longer, for threads that do not end.
        """
        self._loaded = loaded
        self._on_built = on_built
        self._on_closed = on_closed
        self._on_ready = on_ready
        self._build = build
        self._hold = hold
        self._started = time.monotonic()
        self._app: App | None = None
        self._settled = asyncio.Event()
        self._error: BaseException | None = None
        self._server = _Server(self._config(), on_signal=self._signalled, on_hangup=self._hung_up)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def run(self, listener: socket.socket) -> None:
        """Serve until a signal or ``stop``. Raises what made the start fail."""
        self._server.run(sockets=[listener])
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End it, from any thread; what runs is left to the next start."""
        self._server.should_exit = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI: before the gateway is whole, ``/health`` says so and every other request is held."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is None and _asks_for_health(scope):
            skills = {"core": 0, "user": 0}
            body = health_body("starting", started=self._started, skills=skills, connectors=[])
            await bare_http.send_json(send, body)
        elif app := await self._ready():
            await app.asgi(scope, receive, send)
        else:
            await bare_http.send_unavailable(send, Starting())

    def _config(self) -> uvicorn.Config:
        proxies = list(self._loaded.settings.trusted_proxies)
        return bare_http.Config(
            self,
            # The rest is for the database, providers, MCP servers and whatever else runs here.
            most=bare_http.open_files() // 2,
            lifespan="on",
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            timeout_graceful_shutdown=_CONNECTION_GRACE,
        )

    async def _ready(self) -> App | None:
        """The whole gateway, as soon as there is one; None when that takes too long or failed."""
        if self._app is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), self._hold)
        return self._app

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        self._spawn(self._bring_up())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._app is not None:
            await self._app.close()
            if self._on_closed is not None:
                self._on_closed()
        await send({"type": "lifespan.shutdown.complete"})

    async def _bring_up(self) -> None:
        try:
            app = await self._built()
            # Before any program of an MCP server is started.
            erase_variables(app.secret_variables)
            if self._on_built is not None:
                self._on_built()
            await app.start()
        except Exception as error:  # noqa: BLE001 - raised again by run(), when the server has ended
            self._error = error
            self._server.should_exit = True
        else:
            self._app = app
            _log.info("ready", extra={"seconds": round(time.monotonic() - self._started, 2)})
            self._on_ready()
        finally:
            self._settled.set()

    async def _built(self) -> App:
        """The gateway; where nobody wants it any more by the time that it is there, it is closed."""
        building = asyncio.create_task(asyncio.to_thread(self._build, self._loaded, started=self._started))
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            with suppress(Exception):
                await (await building).close()
            raise

    def _signalled(self) -> None:
        self._spawn(self._stop(grace=0 if self._stopping else self._loaded.settings.drain))
        self._stopping = True

    def _hung_up(self) -> None:
        self._spawn(self._reload())

    async def _reload(self) -> None:
        await self._settled.wait()
        if self._app is not None and not self._stopping:
            await self._app.reload.by_signal()

    async def _stop(self, *, grace: float) -> None:
        """Take no more messages, let running turns end, then close the doors."""
        _log.info("stopping; once more to hurry" if grace else "stopping at once")
        if self._app is not None:
            await self._app.turns.stop(grace=grace)
            if grace:
                await self._app.connectors.flush(within=_CONNECTION_GRACE)
        self._server.should_exit = True
        self._settled.set()  # nobody is held any longer

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Server(uvicorn.Server):
    """Hands signals over to the loop instead of ending at once, and raises none of them again at the end."""

    def __init__(
        self, config: uvicorn.Config, *, on_signal: Callable[[], None], on_hangup: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_signal = on_signal
        self._on_hangup = on_hangup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_terminal = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Remember the loop that signals are handed to."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take SIGHUP too, where uvicorn takes the others."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGHUP, self._handle_hangup)
        # Under nohup it was ignored: there the end of the terminal is of no matter.
        self._on_terminal = before is not signal.SIG_IGN and _has_terminal()
        try:
            with super().capture_signals():
                yield
        finally:
            signal.signal(signal.SIGHUP, before)

    def _handle_hangup(self, sig: int, frame: Any) -> None:
        if self._on_terminal and not _has_terminal():
            self.handle_exit(sig, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_hangup)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Called in the main thread, between any two of its instructions."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._on_signal)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``OperatorError`` for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --host or --port"
        ) from error
    return listener


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _asks_for_health(scope: Any) -> bool:
    return scope["path"] in ("/health", "/api/health") and scope["method"] in ("GET", "HEAD")
