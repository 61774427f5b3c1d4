"""Sliding windows of one minute, which count messages."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torana.limits.rate_limit_status import LimitStatus, Policy

MINUTE = 60.0

#: Minimum number of windows at which empty windows are removed.
_WINDOWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCheck:
    """The result for a message. A message that was only checked and is not refused has no statuses."""

    statuses: Sequence[LimitStatus]
    refused: bool
    #: The id of the message in windows that replicas share.
    id: str = ""


class RateWindows(Protocol):
    """The windows of policies, by their names and keys."""

    async def take(self, policies: Sequence[Policy]) -> WindowCheck:
        """Count a message in all windows, or refuse it and count it in none. Never raises."""
        ...

    async def give_back(self, policies: Sequence[Policy], message_id: str) -> None:
        """Remove a counted message. Never raises."""
        ...

    def check(self, policies: Sequence[Policy]) -> WindowCheck:
        """Return the result for a message without counting it, from the windows in this process only."""
        ...


class LocalWindows(RateWindows):
    """Windows in memory, by the monotonic clock; a restart clears them.

    No method awaits, so checking and counting a message is atomic.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        #: The times of counted messages by policy and key, oldest first.
        self._windows: dict[tuple[str, str], deque[float]] = {}
        self._sweep_at = _WINDOWS

    async def take(self, policies: Sequence[Policy]) -> WindowCheck:
        counted = self.check(policies)
        return counted if counted.refused else self.add(policies)

    async def give_back(self, policies: Sequence[Policy], message_id: str) -> None:
        """Remove the newest counted message."""
        for policy in policies:
            window = self._windows.get((policy.name, policy.key))
            if window:
                window.pop()

    def check(self, policies: Sequence[Policy]) -> WindowCheck:
        now = self._monotonic()
        self._sweep(now)
        refused = any(len(self._window(policy, now)) >= policy.quota for policy in policies)
        return WindowCheck(statuses=self._statuses(policies, now) if refused else [], refused=refused)

    def add(self, policies: Sequence[Policy]) -> WindowCheck:
        now = self._monotonic()
        for policy in policies:
            self._window(policy, now).append(now)
        return WindowCheck(statuses=self._statuses(policies, now), refused=False)

    def _window(self, policy: Policy, now: float) -> deque[float]:
        """Return the times of the messages that were counted in the last minute."""
        window = self._windows.setdefault((policy.name, policy.key), deque(maxlen=policy.quota))
        while window and window[0] <= now - MINUTE:
            window.popleft()
        return window

    def _statuses(self, policies: Sequence[Policy], now: float) -> list[LimitStatus]:
        windows = [self._window(policy, now) for policy in policies]
        return [
            status_of(policy, count=len(window), oldest=now - window[0] if window else 0.0)
            for policy, window in zip(policies, windows, strict=True)
        ]

    def _sweep(self, now: float) -> None:
        """Remove the windows of inactive users.

        The next sweep happens when the number of windows has doubled, so its amortised cost is small.
        """
        if len(self._windows) < self._sweep_at:
            return
        since = now - MINUTE
        self._windows = {key: window for key, window in self._windows.items() if window and window[-1] > since}
        self._sweep_at = max(_WINDOWS, 2 * len(self._windows))


def status_of(policy: Policy, *, count: int, oldest: float) -> LimitStatus:
    """Return the status of a window with ``count`` messages, the oldest ``oldest`` seconds ago."""
    return LimitStatus(policy=policy, remaining=max(0, policy.quota - count), reset=math.ceil(MINUTE - oldest))
