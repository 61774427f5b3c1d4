"""Keep the secrets of this process from other processes of the same user."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

#: From linux/prctl.h.
_PR_SET_DUMPABLE = 4


def deny_inspection() -> None:
    """Close this process's memory and environment to other processes of the same user (prctl(2)), on Linux.

    They can neither trace it nor read ``/proc/PID/environ``, ``mem``, ``maps`` or the files behind ``fd``,
    unless they have CAP_SYS_PTRACE, or CAP_PERFMON or CAP_SYS_ADMIN on newer kernels. The kernel writes no core
    dump of the process. A program that it starts is not affected.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def erase_variables(names: Iterable[str]) -> None:
    """Remove environment variables, for programs started later too, and overwrite their values.

    The kernel shows the memory that the process was started with as ``/proc/PID/environ``, also after a
    variable is removed.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    for name in set(names) & os.environ.keys():
        value = getenv(os.fsencode(name))
        if value:
            ctypes.memset(value, 0, len(ctypes.string_at(value)))
        del os.environ[name]
