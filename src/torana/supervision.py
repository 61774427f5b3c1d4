"""Keep a connection to another system open: reconnect with backoff, and track its status."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from torana.errors import ConfigInvalid

State = Literal["starting", "active", "backing_off", "refused"]

#: Seconds before the next connection if the settings, the credentials or this machine do not allow one.
_REFUSED_PAUSE = 600.0
#: A connection that was active for longer than this, in seconds, resets the backoff.
_STABLE_SECONDS = 60.0
#: Seconds that a cancelled task gets to end; after that it is abandoned.
_END = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatus:
    """The status of a connection: ``reason`` if it is not active, ``next_try`` if a reconnection is planned."""

    state: State = "starting"
    since: datetime
    reason: str | None = None
    next_try: datetime | None = None
    connections: int = 0


S = TypeVar("S", bound=ConnectionStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a connection. ``seconds`` is the shortest pause that the other system requests."""

    reason: str
    refused: bool = False
    seconds: float = 0.0
    #: Another process has the connection, or the database is not available. The pause does not grow.
    standby: bool = False


class ConnectionSupervisor(ABC, Generic[S]):
    """Opens one connection after another until cancelled. No error of a connection ends it."""

    #: The prefix of log events and the log field with the name, such as ``connector`` and ``account``.
    log_names: ClassVar[tuple[str, str]]

    def __init__(
        self,
        name: str,
        status: S,
        *,
        clock: Callable[[], datetime],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.status: S = status
        self._name = name
        self._clock = clock
        self._pause = pause

    async def run(self) -> None:
        """Reconnect until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            begun = loop.time()
            self._set_state("starting")
            end = await self._attempt()
            if self.status.state == "active" and loop.time() - begun > _STABLE_SECONDS:
                failures = 0
            wait = _add_jitter(_REFUSED_PAUSE) if end.refused else max(end.seconds, backoff(failures))
            failures += not end.standby
            state = "refused" if end.refused else "backing_off"
            self._set_state(state, reason=end.reason, next_try=self._clock() + timedelta(seconds=wait))
            await self._pause(wait)

    @abstractmethod
    async def _connect(self) -> str:
        """Open a connection, call ``_set_active``, and return the reason of its end, or raise an error."""

    @abstractmethod
    def _describe(self, error: BaseException) -> Ended:
        """Describe the error with which a connection ended; its text must contain no secrets."""

    def _on_change(self) -> None:
        """React to a new state."""

    def _set_active(self) -> None:
        self.status = replace(self.status, connections=self.status.connections + 1)
        self._set_state("active")

    async def _attempt(self) -> Ended:
        """Run one connection to its end, in a separate task: a library may cancel the task it runs in."""
        task = asyncio.create_task(self._connect(), name=f"connection {self._name}")
        try:
            await asyncio.wait({task})
        finally:
            await cancel_with_grace(task, seconds=2 * _END)  # it ends its own tasks in half the time
        if task.cancelled():
            return Ended(reason="the connection was cancelled internally")
        error = _innermost(task.exception())
        if error is None:
            return Ended(reason=task.result())
        _log.debug("connection_failed", exc_info=error, extra={self.log_names[1]: self._name})
        if isinstance(error, ConfigInvalid):
            return Ended(reason=error.detail, refused=True)
        return self._describe(error)

    def _set_state(self, state: State, *, reason: str | None = None, next_try: datetime | None = None) -> None:
        since = self._clock()
        self.status = replace(self.status, state=state, since=since, reason=reason, next_try=next_try)
        self._on_change()
        if state != "starting":
            event, field = self.log_names
            extra: dict[str, Any] = {field: self._name, "reason": reason}
            _log.log(logging.INFO if state == "active" else logging.WARNING, f"{event}_{state}", extra=extra)


async def cancel_with_grace(task: asyncio.Task[Any], *, seconds: float = _END) -> None:
    """Cancel a task and wait some seconds for its end; abandon a task that does not end."""
    task.cancel()
    _, left = await asyncio.wait({task}, timeout=seconds)
    if left:
        _log.error("connection_task_abandoned", extra={"task": task.get_name()})
    elif not task.cancelled():
        task.exception()  # marks it as retrieved


def backoff(failures: int, *, first: float = 1.0) -> float:
    """Return the seconds before the next attempt: doubled with each failure up to 300, with jitter."""
    return _add_jitter(min(300.0, first * 2 ** min(failures, 20)))


def _add_jitter(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311 - not a secret


def _innermost(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
