"""Functions that tests run in worker processes."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any


def echo(value: Any) -> Any:
    sys.stdout.write("what a library prints is no reply")
    return value


def spin() -> None:
    while True:
        pass


def take_memory(size: int) -> int:
    return len(bytearray(size))


def fail(message: str) -> None:
    raise LookupError(message)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def describe() -> dict[str, Any]:
    """Return what the process inherited from its parent, and its limits."""
    limits = ("RLIMIT_FSIZE", "RLIMIT_CORE", "RLIMIT_NOFILE")
    return {
        "pid": os.getpid(),
        "environ": [name for name in os.environ if name != "LC_CTYPE"],  # Python itself sets it
        "niceness": os.nice(0),
        "session": os.getsid(0),
        "limits": {name: resource.getrlimit(getattr(resource, name))[0] for name in limits},
        "files": sorted(path.name for path in Path("/proc/self/fd").iterdir())
        if sys.platform == "linux"
        else [],
        "modules": sorted(name for name in sys.modules if name.startswith("torana")),
    }
