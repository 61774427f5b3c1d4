"""Collect the health of the gateway's parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from torana.api.schemas.contract import HealthBody
from torana.health import Status, health_body


class Health:
    """Collects the health that ``GET /health`` returns."""

    def __init__(
        self,
        *,
        started: float,
        skills: Callable[[], Mapping[Any, int]],
        draining: Callable[[], bool],
        writable: Callable[[], Awaitable[bool]],
        connectors: Callable[[], Sequence[str]] = tuple,
        stuck: Callable[[], int] = int,
    ) -> None:
        """``stuck`` returns the number of sessions that are blocked until the end of a turn can be written."""
        self._started = started
        self._skills = skills
        self._draining = draining
        self._writable = writable
        self._connectors = connectors
        self._stuck = stuck
        #: Set when the gateway will stop soon. It accepts messages, but load balancers should send no more.
        self.leaving = False

    async def report(self) -> tuple[bool, HealthBody]:
        """Return whether messages may be sent to the gateway, and the body of ``/health``.

        While sessions are blocked, the gateway is degraded and accepts messages of other sessions.
        """
        writable, draining = await self._writable(), self.leaving or self._draining()
        healthy = writable and not self._stuck()
        status: Status = "draining" if draining else "ok" if healthy else "degraded"
        body = health_body(status, started=self._started, skills=self._skills(), connectors=self._connectors())
        return writable and not draining, HealthBody.model_validate(body)
