"""How many messages a user, a token, and everyone together may send in a minute."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from torana.errors import GatewayError, RateLimited
from torana.limits.standings import Policy, Standing, headers

#: With so many users' windows the empty ones are swept out for the first time.
_WINDOWS = 10_000

#: Seconds of a window.
_MINUTE = 60.0


class MessageRates:
    """Sliding windows of one minute, in memory: a restart forgets them.

    They are measured on the monotonic clock, so setting the machine's clock changes none of them. Nothing here
    awaits, so the test of a message and its counting cannot be parted.
    """

    def __init__(
        self,
        *,
        per_user: int,
        overall: int,
        per_token: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """0 switches a limit off."""
        self._per_user = per_user
        self._per_token = per_token
        self._overall = overall
        self._monotonic = monotonic
        #: When the messages of each policy and key were counted, the oldest first.
        self._windows: dict[tuple[str, str], deque[float]] = {}
        self._sweep_at = _WINDOWS

    def take(self, user: str | None, token: str | None = None) -> list[Standing]:
        """Count one message against every limit that applies, and tell how each stands after it.

        All limits are tested before any is hit, so a refused message consumes nothing. Raises ``RateLimited``
        with ``Retry-After`` and the names of all violated policies.
        """
        now = self._monotonic()
        self._sweep(now)
        policies = self._policies(user, token)
        violated = [policy for policy in policies if len(self._window(policy, now)) >= policy.quota]
        if violated:
            raise _refusal(self._standings(policies, now), violated)
        for policy in policies:
            self._window(policy, now).append(now)
        return self._standings(policies, now)

    @contextmanager
    def counted(self, user: str | None, token: str | None = None) -> Generator[list[Standing]]:
        """``take`` what is done inside; where that is refused nothing was consumed."""
        standings = self.take(user, token)
        try:
            yield standings
        except GatewayError:
            self.give_back(user, token)
            raise

    def give_back(self, user: str | None, token: str | None = None) -> None:
        """Take back the newest message that was counted: it was refused after all."""
        for policy in self._policies(user, token):
            window = self._windows.get((policy.name, policy.key))
            if window:
                window.pop()

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
        """The times at which messages of the last minute were counted."""
        window = self._windows.setdefault((policy.name, policy.key), deque())
        while window and window[0] <= now - _MINUTE:
            window.popleft()
        return window

    def _standings(self, policies: list[Policy], now: float) -> list[Standing]:
        standings: list[Standing] = []
        for policy in policies:
            window = self._window(policy, now)
            oldest = window[0] if window else now
            reset = math.ceil(oldest + _MINUTE - now)
            standings.append(Standing(policy=policy, remaining=policy.quota - len(window), reset=reset))
        return standings

    def _sweep(self, now: float) -> None:
        """Drop the windows of users who fell silent.

        The next sweep follows when the number of windows has doubled, so a sweep costs each message next to
        nothing.
        """
        if len(self._windows) < self._sweep_at:
            return
        since = now - _MINUTE
        self._windows = {key: window for key, window in self._windows.items() if window and window[-1] > since}
        self._sweep_at = max(_WINDOWS, 2 * len(self._windows))


def _refusal(standings: list[Standing], violated: list[Policy]) -> RateLimited:
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
