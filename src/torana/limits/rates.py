"""Limit the messages per minute of a user, a token and the whole gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from torana.errors import GatewayError, RateLimited
from torana.limits.rate_limit_status import LimitStatus, Policy, headers
from torana.limits.rate_windows import LocalWindows, RateWindows, WindowCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedMessage:
    """A message that the limits have counted, and their states."""

    statuses: Sequence[LimitStatus]
    _id: str
    _policies: Sequence[Policy]
    _windows: RateWindows

    async def give_back(self) -> None:
        await self._windows.give_back(self._policies, self._id)


@dataclass(eq=False, repr=False, kw_only=True)
class MessageRates:
    """The limits per minute of the gateway or, with ``account``, of each sender of that account.

    0 disables a limit.
    """

    per_user: int
    overall: int
    per_token: int = 0
    account: str | None = None
    windows: RateWindows = field(default_factory=LocalWindows)

    def of_senders(self, account: str, per_minute: int) -> MessageRates:
        """Return the limit of each sender of an account, in the same kind of windows."""
        return MessageRates(per_user=per_minute, overall=0, account=account, windows=self.windows)

    async def take(self, user: str | None, token: str | None = None) -> CountedMessage:
        """Count one message against every applicable limit.

        All limits are checked first, so a refused message consumes nothing. Raises ``RateLimited`` with
        ``Retry-After`` and the names of all violated policies.
        """
        policies = self._policies(user, token)
        counted = await self.windows.take(policies) if policies else WindowCheck(statuses=[], refused=False)
        _check(counted)
        return CountedMessage(
            statuses=counted.statuses, _id=counted.id, _policies=policies, _windows=self.windows
        )

    def check(self, user: str | None, token: str | None = None) -> None:
        """Raise ``RateLimited`` if the messages that this replica has counted fill a limit."""
        _check(self.windows.check(self._policies(user, token)))

    @asynccontextmanager
    async def count(self, user: str | None, token: str | None = None) -> AsyncGenerator[CountedMessage]:
        """Count a message as ``take`` does; give it back after a ``GatewayError`` that is not ``counted``."""
        message = await self.take(user, token)
        try:
            yield message
        except GatewayError as error:
            if not error.counted:
                await message.give_back()
            raise

    def _policies(self, user: str | None, token: str | None) -> list[Policy]:
        named: list[Policy] = []
        if user is not None:
            named.append(self._user_policy(user))
        if token is not None:
            setting = "TORANA_LIMITS_PER_TOKEN"
            named.append(Policy(name="token-messages-minute", quota=self.per_token, setting=setting, key=token))
        named.append(Policy(name="global", quota=self.overall, setting="TORANA_RATE_GLOBAL", key=""))
        return [policy for policy in named if policy.quota]

    def _user_policy(self, user: str) -> Policy:
        if self.account is None:
            return Policy(name="user", quota=self.per_user, setting="TORANA_RATE_PER_USER", key=user)
        key = f"{self.account}:{user}"
        return Policy(name="sender", quota=self.per_user, setting=f"per_minute of {self.account}", key=key)


def _check(counted: WindowCheck) -> None:
    if not counted.refused:
        return
    violated = [status for status in counted.statuses if not status.remaining]
    wait = max(1, *(status.reset for status in violated))
    named = " and ".join(f"{status.policy.quota} a minute ({status.policy.setting})" for status in violated)
    raise RateLimited(
        f"Too many messages: the limit is {named}. Try again in {wait} s.",
        headers=headers(counted.statuses) | {"Retry-After": str(wait)},
        extra={
            "retryAfterMs": wait * 1000,
            "violatedPolicies": [status.policy.name for status in violated],
        },
    )
