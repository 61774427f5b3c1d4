"""A full queue refuses messages at once, and accepts them again when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from torana.errors import GatewayError, Overloaded, QueueFull
from torana.messages import Inbound, Turn
from torana.turns import Queue

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


@pytest.mark.parametrize(
    ("queue", "there", "refused", "taken", "error"),
    [
        (Queue(per_session=2), {}, {}, {"channel": "other"}, QueueFull),
        (Queue(per_session=2), {}, {}, {"owner": "ana"}, QueueFull),
        (Queue(per_session=2), {}, {}, {"channel": None}, QueueFull),
        (Queue(per_user=2), {"user": "ana"}, {"user": "ana", "channel": "x"}, {"user": "bob"}, QueueFull),
        (Queue(per_user=2), {"user": "ana"}, {"user": "ana"}, {}, QueueFull),
        (Queue(per_user=2), {"user": "ana"}, {"user": "ana"}, {"user": "ana", "owner": "o"}, QueueFull),
        (Queue(overall=2), {}, {"owner": "ana", "channel": "x"}, None, Overloaded),
    ],
)
async def test_messages_beyond_a_bound_are_refused_also_concurrently(
    boot: Boot,
    message: Message,
    queue: Queue,
    there: dict[str, Any],
    refused: dict[str, Any],
    taken: dict[str, Any] | None,
    error: type[GatewayError],
) -> None:
    gateway = await boot(obedient=True, queue=queue)
    taken_in = [asyncio.ensure_future(gateway.turns.accept(message(text, **there))) for text in ("1", "2")]
    await asyncio.sleep(0)
    for _ in range(2):  # while they are stored, and after
        with pytest.raises(error) as failure:
            await gateway.turns.accept(message("late", **refused))
        assert failure.value.headers == {"Retry-After": "5"}
        await asyncio.gather(*taken_in)
    if taken is not None:
        await gateway.turns.accept(message("elsewhere", **taken))

    await gateway.turns.cancel(there.get("owner", "gateway"), taken_in[0].result().id)

    await gateway.turns.accept(message("now", **refused))


@pytest.mark.parametrize(
    ("queue", "error"),
    [
        (Queue(per_session=2), QueueFull),
        (Queue(per_user=2), QueueFull),
        (Queue(overall=2), Overloaded),
    ],
)
async def test_retries_beyond_a_bound_are_refused_also_concurrently(
    boot: Boot, message: Message, queue: Queue, error: type[GatewayError]
) -> None:
    gateway = await boot(obedient=True, queue=queue)
    failed = [await _fail(gateway, message(text, user="ana")) for text in ("1", "2", "3")]

    outcomes = await asyncio.gather(
        *(gateway.turns.retry("gateway", turn.id) for turn in failed), return_exceptions=True
    )

    assert [type(outcome) for outcome in outcomes] == [Turn, Turn, error]
    with pytest.raises(error):
        await gateway.turns.retry("gateway", failed[2].id)
    await gateway.turns.cancel("gateway", failed[0].id)
    await gateway.turns.retry("gateway", failed[2].id)


async def test_unfinished_turns_count_towards_bounds_after_a_restart(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    for text in ("1", "2"):
        await gateway.turns.accept(message(text))
    await gateway.crash()

    gateway = await boot(obedient=True, queue=Queue(per_session=2))

    with pytest.raises(QueueFull):
        await gateway.turns.accept(message("3"))


async def _fail(gateway: Any, inbound: Inbound) -> Turn:
    """Accept a message, and return its failed turn."""
    turn = await gateway.turns.accept(inbound)
    await gateway.agent.until(inbound.content)
    gateway.agent.end(inbound.content, LookupError("a bug"))
    return await gateway.turns.reader.wait_for_end(turn)
