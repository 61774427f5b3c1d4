"""Rows of previews of replies, across crashes and after the end of their turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from torana.connectors.base import Place
from torana.connectors.runtime.addressing import dump_place
from torana.messages import Inbound, utc_now
from torana.store.rows import deliveries

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


def in_chat(inbound: Inbound) -> Inbound:
    return replace(inbound, account="home", message="7", place=dump_place(Place(chat="with ana")))


async def test_reply_with_an_old_preview_is_delivered(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True, clock=utc_now)
    turn = await gateway.turns.accept(in_chat(message("a")))
    await gateway.agent.until("a")
    yesterday = utc_now() - timedelta(hours=25)
    await gateway.database.run(partial(deliveries.preview, turn=turn, text="It", at=yesterday))
    await gateway.database.run(partial(deliveries.record_preview, number=1, shown_as="m1"))
    await gateway.crash()

    gateway = await boot(obedient=True, clock=utc_now)
    await gateway.agent.until("a")
    gateway.agent.end("a", "It is 4.")
    await gateway.turns.reader.wait_for_end(turn)

    (head,) = await gateway.database.run(partial(deliveries.heads, account="home", now=utc_now()))
    assert (head.text, head.shown_as) == ("It is 4.", "m1")


async def test_turn_that_has_ended_gets_no_preview(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True, clock=utc_now)
    turn = await gateway.turns.accept(in_chat(message("a")))
    await gateway.agent.until("a")
    await gateway.turns.cancel(turn.owner, turn.id)

    preview = partial(deliveries.preview, turn=turn, text="half of the an", at=utc_now())
    assert await gateway.database.run(preview) is None
