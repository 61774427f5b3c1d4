"""Windows that replicas share, in Redis."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, cast

from torana.limits.rate_limit_status import Policy
from torana.limits.rate_windows import MINUTE, LocalWindows, RateWindows, WindowCheck, status_of
from torana.store.redis.server import RedisServer, RedisUnavailable

#: Seconds to wait for Redis before the windows of this replica decide.
_REDIS_TIMEOUT = 0.5

#: Seconds without another attempt after Redis has failed.
_RETRY = 1.0

#: Counts the message ``ARGV[1]`` in each window, whose quotas follow, unless one of them is full. A window is a
#: sorted set of message ids by their times in microseconds. Times of more than a second in the future come from
#: a clock that was ahead. Returns 1 for a refused message or 0, and then for each window its count and the age
#: of its oldest message.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local refused = 0
for i, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now - 60000000)
  redis.call('ZREMRANGEBYSCORE', key, now + 1000000, '+inf')
  if redis.call('ZCARD', key) >= tonumber(ARGV[i + 1]) then refused = 1 end
end
local state = {refused}
for i, key in ipairs(KEYS) do
  if refused == 0 then
    redis.call('ZADD', key, now, ARGV[1])
    redis.call('EXPIRE', key, 60)
  end
  local oldest = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  state[#state + 1] = redis.call('ZCARD', key)
  state[#state + 1] = now - (oldest or now)
end
return state
"""

#: Removes the message ``ARGV[1]`` from each window.
_GIVE_BACK = """
for _, key in ipairs(KEYS) do redis.call('ZREM', key, ARGV[1]) end
return {}
"""


class SharedWindows(RateWindows):
    """Windows in Redis, by its clock.

    While Redis fails, the windows of this replica decide. They contain the messages that this replica has
    counted before, and for a minute after the failure they must have room, too: Redis does not know the
    messages of that time. So each replica allows at most the whole limit.
    """

    def __init__(
        self, *, server: RedisServer, database: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """``database`` is the identity of the database whose replicas share these windows.

        The replicas of other databases may use the same Redis server.
        """
        self._server = server
        self._database = database
        self._monotonic = monotonic
        self._local = LocalWindows(monotonic)
        self._retry_at = monotonic()
        #: Until then the windows of this replica contain messages that Redis does not know.
        self._knows_more_until = monotonic()

    async def take(self, policies: Sequence[Policy]) -> WindowCheck:
        message_id = secrets.token_hex(8)
        quotas = [policy.quota for policy in policies]
        try:
            refused, *numbers = await self._execute(_TAKE, policies, message_id, *quotas)
        except RedisUnavailable:
            self._knows_more_until = self._monotonic() + MINUTE
            return await self._local.take(policies)
        if not refused:
            counted = self._local.check(policies)
            if counted.refused and self._monotonic() < self._knows_more_until:
                with suppress(RedisUnavailable):
                    await self._execute(_GIVE_BACK, policies, message_id)
                return counted
            self._local.add(policies)
        statuses = [
            status_of(policy, count=count, oldest=min(max(age / 1e6, 0), MINUTE))
            for policy, count, age in zip(policies, numbers[::2], numbers[1::2], strict=True)
        ]
        return WindowCheck(statuses=statuses, refused=bool(refused), id=message_id)

    async def give_back(self, policies: Sequence[Policy], message_id: str) -> None:
        await self._local.give_back(policies, message_id)
        if message_id:
            with suppress(RedisUnavailable):  # the message counts for a minute
                await self._execute(_GIVE_BACK, policies, message_id)

    def check(self, policies: Sequence[Policy]) -> WindowCheck:
        return self._local.check(policies)

    async def _execute(self, script: str, policies: Sequence[Policy], *arguments: str | int) -> list[int]:
        """Execute a script for the windows of policies. Raises ``RedisUnavailable``."""
        if self._monotonic() < self._retry_at:
            raise RedisUnavailable
        keys = [self._key(policy) for policy in policies]
        try:
            async with self._server.use("rates") as client, asyncio.timeout(_REDIS_TIMEOUT):
                return await cast("Any", client).eval(script, len(keys), *keys, *arguments)
        except RedisUnavailable:
            self._retry_at = self._monotonic() + _RETRY
            raise

    def _key(self, policy: Policy) -> str:
        """Return the key of a window. Its digest bounds the length, and hides the user."""
        window = "\0".join((self._database, policy.name, policy.key))
        return f"torana:rate:{sha256(window.encode('utf-8', 'surrogatepass')).hexdigest()}"
