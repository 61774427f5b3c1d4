"""Limit the messages per minute of a user, a token and the whole gateway."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from torana.errors import GatewayError, RateLimited
from torana.limits.rate_limit_status import LimitStatus, Policy, headers

#: Number of windows at which empty windows are first removed.
_WINDOWS = 10_000

_MINUTE = 60.0


class MessageRates:
    """Sliding windows of one minute, in memory; a restart clears them.

    They use the monotonic clock. No method awaits, so checking and counting a message is atomic.
    """

    def __init__(
        self,
        *,
        per_user: int,
        overall: int,
        per_token: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """0 disables a limit."""
        self._per_user = per_user
        self._per_token = per_token
        self._overall = overall
        self._monotonic = monotonic
        #: The times of counted messages by policy and key, oldest first.
        self._windows: dict[tuple[str, str], deque[float]] = {}
        self._sweep_at = _WINDOWS

    def take(self, user: str | None, token: str | None = None) -> list[LimitStatus]:
        """Count one message against every applicable limit, and return their states.

        All limits are checked first, so a refused message consumes nothing. Raises ``RateLimited`` with
        ``Retry-After`` and the names of all violated policies.
        """
        now = self._monotonic()
        policies = self._check(user, token, now)
        for policy in policies:
            self._window(policy, now).append(now)
        return self._standings(policies, now)

    def check(self, user: str | None, token: str | None = None) -> None:
        """Raise ``RateLimited`` as ``take`` does, without counting a message."""
        self._check(user, token, self._monotonic())

    @contextmanager
    def count(self, user: str | None, token: str | None = None) -> Generator[list[LimitStatus]]:
        """Count a message as ``take`` does, and give it back if the body raises a ``GatewayError``."""
        standings = self.take(user, token)
        try:
            yield standings
        except GatewayError:
            self.give_back(user, token)
            raise

    def give_back(self, user: str | None, token: str | None = None) -> None:
        """Remove the newest counted message, which was refused later."""
        for policy in self._policies(user, token):
            window = self._windows.get((policy.name, policy.key))
            if window:
                window.pop()

    def _check(self, user: str | None, token: str | None, now: float) -> list[Policy]:
        """Return the policies that apply; none of them is violated."""
        self._sweep(now)
        policies = self._policies(user, token)
        violated = [policy for policy in policies if len(self._window(policy, now)) >= policy.quota]
        if violated:
            raise _refusal(self._standings(policies, now), violated)
        return policies

    def _policies(self, user: str | None, token: str | None) -> list[Policy]:
        named: list[Policy] = []
        if user is not None:
            named.append(Policy(name="user", quota=self._per_user, setting="TORANA_RATE_PER_USER", key=user))
        if token is not None:
            setting = "TORANA_LIMITS_PER_TOKEN"
            named.append(
                Policy(name="token-messages-minute", quota=self._per_token, setting=setting, key=token)
            )
        named.append(Policy(name="global", quota=self._overall, setting="TORANA_RATE_GLOBAL", key=""))
        return [policy for policy in named if policy.quota]

    def _window(self, policy: Policy, now: float) -> deque[float]:
        """Return the times of the messages that were counted in the last minute."""
        window = self._windows.setdefault((policy.name, policy.key), deque())
        while window and window[0] <= now - _MINUTE:
            window.popleft()
        return window

    def _standings(self, policies: list[Policy], now: float) -> list[LimitStatus]:
        standings: list[LimitStatus] = []
        for policy in policies:
            window = self._window(policy, now)
            oldest = window[0] if window else now
            reset = math.ceil(oldest + _MINUTE - now)
            standings.append(LimitStatus(policy=policy, remaining=policy.quota - len(window), reset=reset))
        return standings

    def _sweep(self, now: float) -> None:
        """Remove the windows of inactive users.

        The next sweep happens when the number of windows has doubled, so its amortised cost is small.
        """
        if len(self._windows) < self._sweep_at:
            return
        since = now - _MINUTE
        self._windows = {key: window for key, window in self._windows.items() if window and window[-1] > since}
        self._sweep_at = max(_WINDOWS, 2 * len(self._windows))


def _refusal(standings: list[LimitStatus], violated: list[Policy]) -> RateLimited:
    wait = max(1, *(s.reset for s in standings if s.policy in violated))
    named = " and ".join(f"{policy.quota} a minute ({policy.setting})" for policy in violated)
    return RateLimited(
        f"Too many messages: the limit is {named}. Try again in {wait} s.",
        headers=headers(standings) | {"Retry-After": str(wait)},
        extra={
            "retryAfterMs": wait * 1000,
            "violatedPolicies": [policy.name for policy in violated],
        },
    )
