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
    ) -> None:
        self._started = started
        self._skills = skills
        self._draining = draining
        self._writable = writable
        self._connectors = connectors

    async def report(self) -> tuple[bool, dict[str, Any]]:
        """Whether messages are taken, and the body that says so."""
        writable = await self._writable()
        status: Status = "draining" if self._draining() else "ok" if writable else "degraded"
        body = health_body(status, started=self._started, skills=self._skills(), connectors=self._connectors())
        return status == "ok", body
