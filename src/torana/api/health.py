"""Collect the health of the gateway's parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torana.api.schemas.contract import HealthBody
from torana.health import Status, health_body


@dataclass(slots=True, kw_only=True)
class Health:
    """Collects the health that ``GET /health`` returns."""

    started: float
    skills: Callable[[], Mapping[Any, int]]
    draining: Callable[[], bool]
    writable: Callable[[], Awaitable[bool]]
    connectors: Callable[[], Sequence[str]] = tuple
    #: Returns the number of sessions that are blocked until the end of a turn can be written.
    stuck: Callable[[], int] = int
    #: Set when the gateway will stop soon. It accepts messages, but load balancers should send no more.
    leaving: bool = False

    async def report(self) -> tuple[bool, HealthBody]:
        """Return whether messages may be sent to the gateway, and the body of ``/health``.

        While sessions are blocked, the gateway is degraded and accepts messages of other sessions.
        """
        writable, draining = await self.writable(), self.leaving or self.draining()
        healthy = writable and not self.stuck()
        status: Status = "draining" if draining else "ok" if healthy else "degraded"
        body = health_body(status, started=self.started, skills=self.skills(), connectors=self.connectors())
        return writable and not draining, HealthBody.model_validate(body)
