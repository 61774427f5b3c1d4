"""The body of ``GET /health``, for the gateway and for the small server that answers while it starts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import psutil

from torana import __version__

Status = Literal["ok", "starting", "degraded", "draining"]


def health_body(
    status: Status, *, started: float, skills: Mapping[str, int], connectors: Sequence[str]
) -> dict[str, Any]:
    """Return the contract's fields. ``started`` is the monotonic time of the start."""
    return {
        "status": status,
        "version": __version__,
        "uptime": int(time.monotonic() - started),
        "memory": f"{round(psutil.Process().memory_info().rss / 1_000_000)}MB",
        "skills": dict(skills),
        "connectors": list(connectors),
    }
