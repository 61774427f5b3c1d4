"""Reap orphaned processes if this process adopts them, as the first process of a container does.

A zombie stays until its parent waits for it. The gateway and its libraries wait for each process that they
start; a wait for any child would take their results away. So the gateway runs in a child process, and its
parent only reaps processes and forwards signals.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# From linux/prctl.h.
_PR_SET_PDEATHSIG, _PR_GET_CHILD_SUBREAPER = 1, 37

_PASSED_ON = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)


def run_behind_reaper() -> None:
    """If this process adopts orphans, fork and return in the child; otherwise return at once.

    The parent ends with the child, with the same exit code. Call it before any thread is started.
    """
    if not _adopts_orphans():
        return
    # If SIGCHLD is ignored, the kernel keeps no exit codes.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    parent = os.getpid()
    child = os.fork()
    if child:
        sys.exit(_reap_until_end(child))
    _die_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _adopts_orphans() -> bool:
    if sys.platform != "linux":
        return False
    is_subreaper = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper), 0, 0, 0)
    return os.getpid() == 1 or bool(is_subreaper.value)


def _reap_until_end(child: int) -> int:
    """Reap children and forward signals until ``child`` ends; return its exit code as a shell does."""
    while True:
        received = signal.sigwaitinfo(_PASSED_ON | {signal.SIGCHLD})
        if received.si_signo == signal.SIGCHLD:
            code = _reap(child)
            if code is not None:
                return code if code >= 0 else 128 - code
        # A positive code means that the kernel sent the signal; a terminal sends its signals to the child too.
        elif received.si_code <= 0:
            os.kill(child, received.si_signo)


def _reap(child: int) -> int | None:
    """Reap all children that have ended; return the exit code of ``child`` if it is among them."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if not ended:
            return code
        if ended == child:
            code = os.waitstatus_to_exitcode(status)


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; exit now if it has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
