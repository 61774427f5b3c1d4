"""Programs of MCP servers that a killed gateway left running. Linux only: they are found in /proc."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: The position of the start time behind the name of the program (proc(5), ``stat``).
_STARTED = 19


def note_program(file: Path, pid: int) -> None:
    """Write the identity of a running program, the leader of its process group, to ``file``. Blocks."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(_identity(pid))


def end_left_program(file: Path) -> None:
    """Kill the process group of the program in ``file`` if it still runs. Blocks."""
    with suppress(OSError, ValueError):
        noted = file.read_text()
        pid = int(noted.partition(" ")[0])
        # Another process may have the same number by now.
        if pid > 0 and noted == _identity(pid) and os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)


def _identity(pid: int) -> str:
    """Return the number and the start of a process. Raises ``OSError`` if it does not exist."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid} {fields[_STARTED]} {_BOOT.read_text().strip()}"
