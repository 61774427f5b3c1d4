"""Rate limits that replicas share over a real Redis server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest
from tests.redis_server import RedisProcess

from torana.errors import QueueFull, RateLimited
from torana.limits import shared_rate_windows
from torana.limits.rates import MessageRates
from torana.limits.shared_rate_windows import SharedWindows
from torana.store.redis.server import RedisServer

Open = Callable[..., MessageRates]

#: A time in microseconds in the far future.
_AHEAD = 9e15


@pytest.fixture
async def open_rates(redis: RedisProcess) -> AsyncGenerator[Open]:
    """``open_rates(per_user=1)`` returns the limits of a replica."""
    servers: list[RedisServer] = []

    def begin(*, per_user: int = 0, overall: int = 0, database: str = "") -> MessageRates:
        servers.append(RedisServer(redis.url))
        windows = SharedWindows(server=servers[-1], database=database)
        return MessageRates(per_user=per_user, overall=overall, windows=windows)

    yield begin
    for server in servers:
        await server.close()


async def accepted(rates: MessageRates, user: str | None = "ana", *, times: int = 1) -> int:
    """Return the number of accepted messages of a user."""
    return [await is_accepted(rates, user) for _ in range(times)].count(True)


async def is_accepted(rates: MessageRates, user: str | None) -> bool:
    try:
        await rates.take(user)
    except RateLimited:
        return False
    return True


def keys(redis: RedisProcess) -> Sequence[bytes]:
    return redis.execute("KEYS", "torana:rate:*")


async def test_replicas_share_the_windows(open_rates: Open) -> None:
    first, second = open_rates(per_user=3), open_rates(per_user=3)

    message = await first.take("ana")
    assert [(status.remaining, status.reset) for status in message.statuses] == [(2, 60)]
    assert [status.remaining for status in (await second.take("ana")).statuses] == [1]
    assert await accepted(first) == 1
    with pytest.raises(RateLimited) as refused:
        await second.take("ana")

    assert refused.value.extra["violatedPolicies"] == ["user"]
    assert 1 <= int(refused.value.headers["Retry-After"]) <= 60
    assert await accepted(second, "bob") == 1


async def test_messages_at_the_same_time_do_not_pass_the_limit(
    open_rates: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rate_windows, "_REDIS_TIMEOUT", 60)  # for a busy machine
    replicas = [open_rates(overall=10) for _ in range(3)]

    results = await asyncio.gather(*(is_accepted(rates, None) for rates in replicas for _ in range(20)))

    assert results.count(True) == 10


async def test_refused_message_consumes_nothing(open_rates: Open) -> None:
    rates = open_rates(per_user=1, overall=3)
    assert await accepted(rates, times=10) == 1

    assert (await rates.take("bob")).statuses[-1].remaining == 1


async def test_message_that_is_refused_later_is_given_back(open_rates: Open) -> None:
    first, second = open_rates(per_user=1), open_rates(per_user=1)
    with pytest.raises(QueueFull):
        async with first.count("ana"):
            raise QueueFull

    assert await accepted(second) == 1


async def test_limit_of_senders_is_shared_and_counts_separately(open_rates: Open) -> None:
    first, second = open_rates(per_user=1), open_rates(per_user=1)
    senders, same = first.of_senders("chat", 2), second.of_senders("chat", 2)

    assert await accepted(first, "chat:ana") == 1
    assert await accepted(senders) + await accepted(same, times=3) == 2
    assert await accepted(second.of_senders("other", 2), times=3) == 2


async def test_databases_at_one_server_count_separately(open_rates: Open) -> None:
    first, second = open_rates(per_user=1, database="one"), open_rates(per_user=1, database="two")

    assert await accepted(first) == await accepted(second) == 1


async def test_keys_expire_and_contain_no_user(open_rates: Open, redis: RedisProcess) -> None:
    await open_rates(per_user=1, overall=1).take("zoe")

    assert len(keys(redis)) == 2
    for key in keys(redis):
        assert b"zoe" not in key
        assert 0 < redis.execute("TTL", key.decode()) <= 60


async def test_replica_applies_the_whole_limit_while_redis_is_gone(
    open_rates: Open, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rate_windows, "_RETRY", 0)
    first, second = open_rates(per_user=3), open_rates(per_user=3)
    assert await accepted(first) == await accepted(second) == 1

    redis.kill()
    assert await accepted(first, times=5) == await accepted(second, times=5) == 2

    redis.start()
    assert await accepted(first, "bob", times=3) + await accepted(second, "bob", times=3) == 3


async def test_messages_during_an_outage_count_after_it(
    open_rates: Open, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rate_windows, "_RETRY", 0)
    first, second = open_rates(per_user=2), open_rates(per_user=2)
    redis.kill()
    assert await accepted(first, times=3) == 2

    redis.start()
    assert await accepted(first) == 0
    assert await accepted(first, "bob", times=3) == 2
    assert await accepted(second, times=3) == 2  # the refused message does not count


async def test_replica_decides_alone_if_the_server_does_not_respond(
    open_rates: Open, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rate_windows, "_REDIS_TIMEOUT", 0.1)
    monkeypatch.setattr(shared_rate_windows, "_RETRY", 1_000)
    rates = open_rates(per_user=3)
    redis.signal(signal.SIGSTOP)
    try:
        assert await accepted(rates, times=5) == 3
    finally:
        redis.signal(signal.SIGCONT)


async def test_deleted_windows_are_empty(open_rates: Open, redis: RedisProcess) -> None:
    rates = open_rates(per_user=1)
    await rates.take("ana")
    redis.execute("FLUSHALL")

    assert await accepted(rates) == 1


async def test_times_of_a_clock_that_was_ahead_do_not_count(open_rates: Open, redis: RedisProcess) -> None:
    rates = open_rates(per_user=1)
    await rates.take("ana")
    (key,) = keys(redis)
    (member,) = redis.execute("ZRANGE", key.decode(), 0, 0)
    redis.execute("ZADD", key.decode(), int(_AHEAD), member.decode())

    assert await accepted(rates) == 1


@pytest.mark.parametrize("command", [("SET",), ("LPUSH",)])
async def test_foreign_value_of_a_key_makes_the_replica_count_alone(
    open_rates: Open, redis: RedisProcess, command: tuple[str]
) -> None:
    rates = open_rates(per_user=2)
    await rates.take("ana")
    (key,) = keys(redis)
    redis.execute("DEL", key.decode())
    redis.execute(*command, key.decode(), "x")

    assert await accepted(rates, times=3) == 1
