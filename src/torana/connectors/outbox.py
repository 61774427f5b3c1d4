"""Delivers what is to be said on one account: in order, once, and for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from torana.connectors.base import Abilities, Connector, Part, Refused, TryLater
from torana.connectors.places import read_place
from torana.connectors.splitting import split
from torana.errors import StoreUnavailable
from torana.lasting import either
from torana.store import deliveries
from torana.store.database import Database
from torana.store.deliveries import FRESH, Delivery

#: What stands before a part that may have arrived before, and the room that is left for it.
REPEATED = "(sent again) "

#: Lines that are delivered to at once.
_ABREAST = 8

#: Seconds for one call of the platform, and between two looks when nobody wakes us.
_CALL = 60.0
_LOOK = 60.0

#: Seconds before a failed part is tried again: twice as many each time, up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 300.0

_log = logging.getLogger(__name__)


class Outbox:
    """The account's deliveries, whatever connection it has at the moment."""

    def __init__(
        self,
        *,
        account: str,
        database: Database,
        clock: Callable[[], datetime],
        settled: Callable[[Delivery], Awaitable[None]],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``settled`` waits until nothing else shows anything in the place of a delivery any more."""
        self._account = account
        self._database = database
        self._clock = clock
        self._settled = settled
        self._pause = pause
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._busy: set[str] = set()
        self._turnstile = asyncio.Lock()
        self._free_at = 0.0

    def wake(self) -> None:
        """Say that there may be something to deliver."""
        self._idle.clear()
        self._woken.set()

    async def until_idle(self) -> None:
        """Wait until nothing more can be delivered at the moment."""
        await self._idle.wait()

    async def deliver(self, connector: Connector[Any]) -> None:
        """Deliver over this connection until cancelled.

        What an earlier connection or process left in the middle is first taken for unsure.
        """
        for delivery in await self._database.run(partial(deliveries.cut_off, account=self._account)):
            await self._unsure(connector, delivery, "the connection ended while it was sent")
        tasks: set[asyncio.Task[None]] = set()
        self._busy.clear()
        try:
            while True:
                self._woken.clear()
                for delivery in await self._due():
                    task = asyncio.create_task(self._attempt(connector, delivery), name=delivery.id)
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await either(self._woken, self._pause(self._look_in))
        finally:
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _due(self) -> list[Delivery]:
        """What can be sent now, a part of each line; the next look is when another one is due."""
        now = self._clock()
        try:
            heads = await self._database.run(partial(deliveries.heads, account=self._account, now=now))
        except StoreUnavailable:
            self._look_in = 1.0
            return []
        waiting = [head for head in heads if head.line not in self._busy]
        # What is due later than any reply may be sent was put off by a clock that was ahead.
        later = [head for head in waiting if now < head.due_at <= now + FRESH]
        self._look_in = min([_LOOK, *((head.due_at - now).total_seconds() for head in later)])
        due = [head for head in waiting if head not in later][: max(0, _ABREAST - len(self._busy))]
        self._busy.update(head.line for head in due)
        if not self._busy:
            self._idle.set()
        return due

    async def _attempt(self, connector: Connector[Any], delivery: Delivery) -> None:
        try:
            if delivery.state == "sending":  # how an earlier try ended could not be written down
                await self._unsure(connector, delivery, "nobody knows how it ended")
            else:
                await self._send(connector, delivery)
        except StoreUnavailable:
            await self._pause(1.0)  # the row says how it stands: at worst it is unsure
        except Exception:  # noqa: BLE001 - nobody else would see it
            _log.exception("a delivery could not be carried out", extra={"delivery": delivery.id})
            await self._pause(_LOOK)
        finally:
            self._busy.discard(delivery.line)
            self.wake()

    async def _send(self, connector: Connector[Any], delivery: Delivery) -> None:
        await self._settled(delivery)
        cut = delivery if delivery.is_cut else await self._cut(connector.abilities, delivery)
        if cut is None:
            return  # it was dropped meanwhile, or a question in it was closed
        delivery = cut
        part = await asyncio.to_thread(_part, connector.abilities, delivery)
        await self._take_turn(connector.abilities.pace)
        if not await self._database.run(partial(deliveries.begin, delivery=delivery, at=self._clock())):
            return  # it was dropped meanwhile, or a question in it was closed
        delivery = replace(delivery, tries=delivery.tries + 1)
        try:
            async with asyncio.timeout(_CALL):
                shown_as = await self._shown(connector, delivery, part)
        except Refused as error:
            await self._refused(delivery, str(error))
        except TryLater as error:
            await self._later(delivery, str(error), error.seconds)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            await self._unsure(connector, delivery, "the call was cut off from within")
        except Exception as error:  # noqa: BLE001 - whatever it is, the part may have arrived
            await self._unsure(connector, delivery, str(error) or type(error).__name__)
        else:
            await self._keep_sent(delivery, shown_as)

    async def _keep_sent(self, delivery: Delivery, shown_as: str) -> None:
        """Write down that a part arrived, for however long that cannot be written."""
        work = partial(deliveries.sent, number=delivery.number, shown_as=shown_as, at=self._clock())
        await self._database.persist(work, pause=self._pause)

    async def _cut(self, abilities: Abilities, delivery: Delivery) -> Delivery | None:
        room = abilities.length - (len(REPEATED) if abilities.repeat == "blind" else 0)
        pieces = await asyncio.to_thread(split, delivery.text, replace(abilities, length=room)) or ["…"]
        return await self._database.run(partial(deliveries.cut, delivery=delivery, pieces=pieces))

    async def _shown(self, connector: Connector[Any], delivery: Delivery, part: Part) -> str:
        if delivery.unsure and connector.abilities.repeat == "readable" and part.edits is None:
            found = await connector.find(part)
            if found is not None:
                return found
        return await connector.send(part)

    async def _refused(self, delivery: Delivery, reason: str) -> None:
        if delivery.shown_as is not None:  # the preview is gone: it is shown anew
            again = replace(delivery, shown_as=None)
            work = partial(deliveries.put_back, delivery=again, due_at=self._clock(), reason=reason)
            await self._database.run(work)
            return
        _log.warning("a delivery was refused", extra={"delivery": delivery.id, "reason": reason})
        await self._end(delivery, "refused", reason)

    async def _later(self, delivery: Delivery, reason: str, seconds: float | None) -> None:
        """Obey the platform's own time: for the whole account, since nobody says what the limit is on."""
        if seconds is not None:
            self._free_at = max(self._free_at, asyncio.get_running_loop().time() + seconds)
        wait = seconds or _backoff(delivery.tries)  # "at once", again and again, would be a hot loop
        due_at = self._clock() + timedelta(seconds=wait)
        await self._database.run(partial(deliveries.put_back, delivery=delivery, due_at=due_at, reason=reason))

    async def _unsure(self, connector: Connector[Any], delivery: Delivery, reason: str) -> None:
        """Nobody knows whether it arrived: see ``Repeat``. An edit can always be made again."""
        again = replace(delivery, unsure=delivery.unsure + 1)
        is_safe = connector.abilities.repeat != "blind" or delivery.shown_as is not None
        may_repeat = connector.settings.on_ambiguous == "resend" and delivery.unsure == 0
        if not is_safe and not may_repeat:
            _log.warning("a delivery may have arrived", extra={"delivery": delivery.id, "reason": reason})
            await self._end(delivery, "ambiguous", reason)
            return
        due_at = self._clock() + timedelta(seconds=_backoff(delivery.tries))
        await self._database.run(partial(deliveries.put_back, delivery=again, due_at=due_at, reason=reason))

    async def _end(self, delivery: Delivery, state: deliveries.DeliveryState, reason: str) -> None:
        await self._database.run(
            partial(deliveries.end, number=delivery.number, state=state, at=self._clock(), reason=reason)
        )

    async def _take_turn(self, pace: float) -> None:
        """Wait until the account may send again."""
        async with self._turnstile:
            now = asyncio.get_running_loop().time()
            if self._free_at > now:
                await self._pause(self._free_at - now)
            self._free_at = max(self._free_at, now) + 1 / pace


def _part(abilities: Abilities, delivery: Delivery) -> Part:
    mark = REPEATED if delivery.unsure and abilities.repeat == "blind" and delivery.shown_as is None else ""
    return Part(
        key=str(UUID(delivery.id.removeprefix("dlv_"))),
        place=read_place(delivery.place),
        text=mark + abilities.render(delivery.text),
        number=delivery.part,
        edits=delivery.shown_as,
    )


def _backoff(tries: int) -> float:
    """Seconds before the next try, up to a half more or less, so that many do not come back at once."""
    pause = min(_LAST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 20))
    return pause * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
