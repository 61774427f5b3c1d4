"""Run a gateway: listen at once, load in the background, and stop in order."""

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
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn

from torana import http11
from torana.characters import one_line
from torana.cli.collector import freeze_objects
from torana.cli.freed_memory import keep_returning_memory
from torana.cli.process_secrets import erase_variables
from torana.config import Loaded
from torana.errors import OperatorError, Starting, StoreUnavailable
from torana.health import health_body

if TYPE_CHECKING:
    from torana.app import App

#: Seconds that running turns and open connections get when the gateway stops.
_CONNECTION_GRACE = 5

_log = logging.getLogger(__name__)


class _Build(Protocol):
    """Builds the gateway in a thread while the socket already listens."""

    def __call__(self, loaded: Loaded, *, started: float) -> App: ...


def _build(loaded: Loaded, *, started: float) -> App:
    # Imported here because it imports most of the gateway; the socket already listens.
    from torana.app import build

    return build(loaded, started=started, on_loaded=freeze_objects)


class Gateway:
    """A gateway on a socket, from its start to its end.

    It listens and answers ``/health`` while ``build`` still runs; every other request is held for at most
    ``hold`` seconds. After the first signal load balancers may take the gateway out, and running turns may
    finish; after the second signal they are left to the next start. SIGHUP reloads the settings, unless the
    terminal was closed: then it stops the gateway.
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
        """Call ``on_built`` before the start, ``on_ready`` after it, and ``on_closed`` after the stop.

        ``run`` may return later than ``on_closed``, because of threads that do not end.
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
        self._server = _Server(self._config(), on_signal=self._on_signal, on_hangup=self._hung_up)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def run(self, listener: socket.socket) -> None:
        """Serve until a signal or ``stop``. Raises the error that prevented the start."""
        self._server.run(sockets=http11.duplicate(listener))
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the gateway, from any thread; running turns are left to the next start."""
        self._server.should_exit = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle ASGI requests. During the start, ``/health`` reports it and other requests wait."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is None and _asks_for_health(scope):
            skills = {"core": 0, "user": 0}
            body = health_body("starting", started=self._started, skills=skills, connectors=[])
            # Load balancers of replicas send requests to another one.
            replicas = self._loaded.settings.replicas
            status = HTTPStatus.SERVICE_UNAVAILABLE if replicas else HTTPStatus.OK
            await http11.send_json(send, body, status=status)
        elif app := await self._ready():
            await app.asgi(scope, receive, send)
        else:
            await http11.send_unavailable(send, Starting())

    def _config(self) -> uvicorn.Config:
        proxies = list(self._loaded.settings.trusted_proxies)
        return http11.Config(
            self,
            # The other half is for the database, providers, MCP servers and others.
            most=http11.open_files() // 2,
            lifespan="on",
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            timeout_graceful_shutdown=_CONNECTION_GRACE,
        )

    async def _ready(self) -> App | None:
        """Wait for the built gateway; return None if that fails or takes too long."""
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
            app = await self._build_app()
            # Secrets are erased before the programs of MCP servers start.
            erase_variables(app.secret_variables)
            if self._on_built is not None:
                self._on_built()
            await app.start()
        except StoreUnavailable as error:
            failed = error.__cause__
            reason = one_line(str(getattr(failed, "orig", failed) or error.detail))
            self._fail(OperatorError(f"the database cannot be used: it failed during the start ({reason})"))
        except Exception as error:  # noqa: BLE001 - raised again by run(), when the server has ended
            self._fail(error)
        else:
            self._app = app
            self._spawn(self._stop_if_lost(app))
            self._spawn(keep_returning_memory())
            _log.info("gateway_ready", extra={"seconds": round(time.monotonic() - self._started, 2)})
            self._on_ready()
        finally:
            self._settled.set()

    def _fail(self, error: Exception) -> None:
        """End the server; ``run`` raises the error then."""
        self._error = error
        self._server.should_exit = True

    async def _stop_if_lost(self, app: App) -> None:
        """Stop the gateway when another replica has taken over its turns. Waiting requests get their paths."""
        await app.turns.replicas.lost.wait()
        self._stopping = True
        self._error = OperatorError(
            "another replica has taken over the work of this replica, whose lease was not renewed in time; "
            "start it again"
        )
        await self._stop(grace=0)

    async def _build_app(self) -> App:
        """Build the gateway; close it if the start was aborted in the meantime."""
        building = asyncio.create_task(asyncio.to_thread(self._build, self._loaded, started=self._started))
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            with suppress(Exception):
                await (await building).close()
            raise

    def _on_signal(self) -> None:
        settings = self._loaded.settings
        self._spawn(
            self._stop(grace=0) if self._stopping else self._leave(settings.drain_delay, settings.drain)
        )
        self._stopping = True

    def _hung_up(self) -> None:
        self._spawn(self._reload())

    async def _reload(self) -> None:
        await self._settled.wait()
        if self._app is not None and not self._stopping:
            await self._app.reload.by_signal()

    async def _leave(self, delay: float, grace: float) -> None:
        """Have load balancers take the gateway out before it stops."""
        if delay and self._app is not None:
            _log.info("gateway_draining", extra={"seconds": delay})
            self._app.services.health.leaving = True
            await asyncio.sleep(delay)
        await self._stop(grace=grace)

    async def _stop(self, *, grace: float) -> None:
        """Stop accepting messages, let running turns finish, then close the listeners."""
        hint = {"hint": "press Ctrl-C again to stop at once"} if grace else {}
        _log.info("gateway_stopping", extra={"grace_seconds": grace} | hint)
        try:
            if self._app is not None:
                await self._app.turns.stop(grace=grace)
                if grace:
                    await self._app.connectors.flush(within=_CONNECTION_GRACE)
        finally:  # also after an error of a part that stops
            self._server.should_exit = True
            self._settled.set()  # release the held requests

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Server(uvicorn.Server):
    """Passes signals to the event loop, and does not raise them again at the end."""

    def __init__(
        self, config: uvicorn.Config, *, on_signal: Callable[[], None], on_hangup: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_signal = on_signal
        self._on_hangup = on_hangup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_terminal = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Store the event loop that receives the signals."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install the handler for SIGHUP together with uvicorn's handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGHUP, self._handle_hangup)
        # Under nohup SIGHUP was ignored: there the end of the terminal must not stop the gateway.
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
        """Handle a signal; Python calls this in the main thread between any two instructions."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._on_signal)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ``OperatorError`` for an address that is not available."""
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
