"""How the gateway is: asks those who know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from torana.health import Status, health_body


class Health:
    """Gathers what ``GET /health`` reports."""

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
        """``stuck`` is the number of sessions in which nothing runs until a turn's end can be written."""
        self._started = started
        self._skills = skills
        self._draining = draining
        self._writable = writable
        self._connectors = connectors
        self._stuck = stuck

    async def report(self) -> tuple[bool, dict[str, Any]]:
        """Whether messages are taken, and the body that says so.

        While sessions are stuck the gateway is degraded, and takes the messages of all others.
        """
        writable, draining = await self._writable(), self._draining()
        well = writable and not self._stuck()
        status: Status = "draining" if draining else "ok" if well else "degraded"
        body = health_body(status, started=self._started, skills=self._skills(), connectors=self._connectors())
        return writable and not draining, body
