"""How many messages a user, a token, and everyone together may send in a minute."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from torana.errors import GatewayError, RateLimited
from torana.limits.standings import Policy, Standing, headers

#: With so many users' windows the empty ones are swept out for the first time.
_WINDOWS = 10_000


class MessageRates:
    """Sliding windows of one minute, in memory: a restart forgets them.

    The library's synchronous storage: a message costs 14 µs with it, 100 µs with the asynchronous one, which
    hands every key to a thread to expire it. Nothing here awaits, so test and hit cannot be parted.
    """

    def __init__(self, *, per_user: int, overall: int, per_token: int = 0) -> None:
        """0 switches a limit off."""
        self._per_user = per_user
        self._per_token = per_token
        self._overall = overall
        self._storage = MemoryStorage()
        self._limiter = MovingWindowRateLimiter(self._storage)
        self._sweep_at = _WINDOWS

    def take(self, user: str | None, token: str | None = None) -> list[Standing]:
        """Count one message against every limit that applies, and tell how each stands after it.

        All limits are tested before any is hit, so a refused message consumes nothing. Raises ``RateLimited``
        with ``Retry-After`` and the names of all violated policies.
        """
        self._sweep()
        policies = self._policies(user, token)
        violated = [policy for policy in policies if not self._limiter.test(*_hit(policy))]
        if violated:
            raise _refusal(self._standings(policies), violated)
        for policy in policies:
            self._limiter.hit(*_hit(policy))
        return self._standings(policies)

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
            item, *identifiers = _hit(policy)
            entries = self._storage.events.get(item.key_for(*identifiers))
            if entries:
                entries.pop(0)  # the newest stands first

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

    def _standings(self, policies: list[Policy]) -> list[Standing]:
        standings: list[Standing] = []
        for policy in policies:
            stats = self._limiter.get_window_stats(*_hit(policy))
            reset = max(0, math.ceil(stats.reset_time - time.time()))
            standings.append(Standing(policy=policy, remaining=stats.remaining, reset=reset))
        return standings

    def _sweep(self) -> None:
        """Drop the windows of users who fell silent: the storage empties them and keeps their keys for ever.

        Next when their number has doubled, so that a sweep costs each message next to nothing.
        """
        windows = self._storage.events
        if len(windows) < self._sweep_at:
            return
        for key in [key for key, entries in list(windows.items()) if not entries]:
            del windows[key]
        self._sweep_at = max(_WINDOWS, 2 * len(windows))


def _hit(policy: Policy) -> tuple[RateLimitItemPerMinute, str, str]:
    return RateLimitItemPerMinute(policy.quota), policy.name, policy.key


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
