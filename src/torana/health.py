"""The body of ``GET /health``, for the gateway and for the small server that answers while it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torana import __version__

#: The numbers of pages of this process on Linux; the second is that of resident pages.
_PAGES = Path("/proc/self/statm")

Status = Literal["ok", "starting", "degraded", "draining"]


def health_body(
    status: Status, *, started: float, skills: Mapping[str, int], connectors: Sequence[str]
) -> dict[str, Any]:
    """Return the contract's fields. ``started`` is the monotonic time of the start."""
    return {
        "status": status,
        "version": __version__,
        "uptime": int(time.monotonic() - started),
        "memory": f"{round(resident_memory() / 1_000_000)}MB",
        "skills": dict(skills),
        "connectors": list(connectors),
    }


def resident_memory() -> int:
    """Return the bytes of this process's resident memory."""
    try:
        return int(_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # Another system. Imported here because psutil takes more than a megabyte.
        import psutil

        return psutil.Process().memory_info().rss
