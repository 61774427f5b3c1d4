"""Deliver the messages of one account in order and once, with retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from torana.aio import wait_first
from torana.connectors.base import Capabilities, Connector, Part, PermanentError, RetryLater
from torana.connectors.runtime.addressing import read_place
from torana.connectors.transport.splitting import split_beginning
from torana.errors import StoreUnavailable
from torana.measurements import Measurements
from torana.store.engine.database import Database
from torana.store.rows import deliveries
from torana.store.rows.deliveries import FRESH, UNCONFIRMED, Delivery
from torana.supervision import backoff
from torana.tracing import SpanDetails, SpanPlace
from torana.turns.events.activity import Activity

#: The prefix of a part that may have arrived before; parts leave room for it.
REPEATED = "(sent again) "

#: Maximum number of lines (conversations) with a delivery in progress.
_PARALLEL_LINES = 8

#: Timeout, in seconds, for one call of the platform, and for calls in progress at the end of a connection.
_CALL, _LAST_CALL = 60.0, 3.0

#: The longest time between two checks, and the same with other replicas, whose deliveries cause no event here.
_CHECK_INTERVAL, _SHARED_CHECK_INTERVAL = 60.0, 2.0

#: Seconds before the second attempt to send a part.
_FIRST_PAUSE = 0.5

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class Outbox:
    """The account's deliveries, across its connections.

    ``settled`` waits until no preview can overwrite a delivery. ``rendering`` has the threads that split and
    render texts, which can take seconds.
    """

    account: str
    database: Database
    clock: Callable[[], datetime]
    settled: Callable[[Delivery], Awaitable[None]]
    rendering: Executor
    measurements: Measurements
    activity: Activity
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _busy: set[str] = field(default_factory=set[str], init=False)
    #: The attempts that call the platform, or that store the outcome of their call.
    _calling: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]], init=False)
    _turnstile: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _free_at: float = field(default=0.0, init=False)

    def wake(self) -> None:
        """Report that there may be new deliveries."""
        self._idle.clear()
        self._woken.set()

    async def until_idle(self) -> None:
        await self._idle.wait()

    async def deliver(self, connector: Connector[Any]) -> None:
        """Deliver over this connection until cancelled; then wait a moment for calls in progress.

        Deliveries that an earlier connection or process left unfinished first become unsure.
        """
        for delivery in await self.database.run(partial(deliveries.list_interrupted, account=self.account)):
            await self._unsure(connector, delivery, "the connection ended while it was sent")
        tasks: set[asyncio.Task[None]] = set()
        self._busy.clear()
        try:
            while True:
                self._woken.clear()
                due, pause = await self._due()
                for delivery in due:
                    task = asyncio.create_task(self._attempt(connector, delivery), name=delivery.id)
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await wait_first(self._woken, self.pause(pause))
        finally:
            await self._end_attempts(tasks.copy())

    async def _end_attempts(self, tasks: set[asyncio.Task[None]]) -> None:
        """End the attempts; the outcome of a call that is cancelled would be unknown."""
        for task in tasks - self._calling:
            task.cancel()
        try:
            if calls := tasks & self._calling:
                await asyncio.wait(calls, timeout=_LAST_CALL)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _due(self) -> tuple[list[Delivery], float]:
        """Return the deliveries to send now, one part for each line, and the seconds to the next check."""
        now = self.clock()
        try:
            heads = await self.database.run(partial(deliveries.heads, account=self.account, now=now))
        except StoreUnavailable:
            return [], 1.0
        waiting = [head for head in heads if head.line not in self._busy]
        later = [head for head in waiting if _waits(head, now)]
        interval = _CHECK_INTERVAL if self.database.replica is None else _SHARED_CHECK_INTERVAL
        pause = min([interval, *((head.due_at - now).total_seconds() for head in later)])
        due = [head for head in waiting if head not in later][: max(0, _PARALLEL_LINES - len(self._busy))]
        self._busy.update(head.line for head in due)
        if not self._busy:
            self._idle.set()
        return due, pause

    async def _attempt(self, connector: Connector[Any], delivery: Delivery) -> None:
        try:
            if delivery.state == "sending":  # the outcome of an earlier attempt was not stored
                await self._unsure(connector, delivery, "the outcome of an earlier attempt is unknown")
            else:
                await self._send(connector, delivery)
        except StoreUnavailable:
            await self.pause(1.0)  # the stored state stays valid: at worst the delivery is unsure
        except Exception:  # noqa: BLE001 - no caller awaits this task
            _log.exception("delivery_failed", extra={"delivery_id": delivery.id})
            await self.pause(_CHECK_INTERVAL)
        finally:
            self._busy.discard(delivery.line)
            self.wake()

    async def _send(self, connector: Connector[Any], delivery: Delivery) -> None:
        await self.settled(delivery)
        if not delivery.is_cut:
            first = await self._split_into_parts(connector.abilities, delivery)
            if first is None:
                return  # the delivery was dropped meanwhile, or its question was closed
            delivery = first
        loop = asyncio.get_running_loop()
        part = await loop.run_in_executor(self.rendering, _part, connector.abilities, delivery)
        await self._take_turn(connector.abilities.pace)
        if not await self._begin(delivery):
            return
        delivery = replace(delivery, tries=delivery.tries + 1)
        try:
            with self.measurements.time("delivery", self.account), self._trace(delivery):
                async with asyncio.timeout(_CALL):
                    shown_as = await self._send_or_find(connector, delivery, part)
        except PermanentError as error:
            await self._on_refused(delivery, str(error))
        except RetryLater as error:
            await self._later(delivery, str(error), error.seconds)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            await self._unsure(connector, delivery, "the call was cancelled internally")
        except Exception as error:  # noqa: BLE001 - after any error the part may have arrived
            await self._unsure(connector, delivery, str(error) or type(error).__name__)
        else:
            await self._record_sent(delivery, shown_as)

    async def _begin(self, delivery: Delivery) -> bool:
        """Store that a part is being sent; from now on, the end of the connection waits for the attempt."""
        if (task := asyncio.current_task()) is not None:
            self._calling.add(task)
            task.add_done_callback(self._calling.discard)
        return await self.database.run(partial(deliveries.begin, delivery=delivery, at=self.clock()))

    def _trace(self, delivery: Delivery) -> AbstractContextManager[SpanDetails]:
        """Record a span for an attempt, as a child of the span of its turn."""
        attributes = {"torana.account": self.account, "torana.delivery.attempt": delivery.tries}
        place = SpanPlace(kind="client", of_turn=delivery.turn_id)
        return self.measurements.tracer.span("delivery", place, **attributes)

    async def _record_sent(self, delivery: Delivery, shown_as: str) -> None:
        """Store that a part arrived; retry until the store accepts it."""
        work = partial(deliveries.record_sent, number=delivery.number, shown_as=shown_as, at=self.clock())
        await self.database.persist(work, pause=self.pause)
        self._publish(delivery, "sent")

    async def _split_into_parts(self, abilities: Capabilities, delivery: Delivery) -> Delivery | None:
        """Cut the first parts of a text. The rest is cut when it is its turn: it may be many parts."""
        room = abilities.length - (len(REPEATED) if abilities.repeat == "blind" else 0)
        parts = partial(split_beginning, delivery.text, replace(abilities, length=room))
        pieces, rest = await asyncio.get_running_loop().run_in_executor(self.rendering, parts)
        work = partial(deliveries.cut, delivery=delivery, pieces=pieces or ["…"], rest=rest)
        return await self.database.run(work)

    async def _send_or_find(self, connector: Connector[Any], delivery: Delivery, part: Part) -> str:
        if delivery.shown_as == UNCONFIRMED:
            preview = replace(part, key=delivery.preview_key, number=0)
            part = replace(part, edits=await connector.confirm(preview))
        if delivery.unsure and connector.abilities.repeat == "readable" and part.edits is None:
            found = await connector.find(part)
            if found is not None:
                return found
        return await connector.send(part)

    async def _on_refused(self, delivery: Delivery, reason: str) -> None:
        if delivery.shown_as is not None:  # the preview is gone: send the part as a new message
            await self._put_back(replace(delivery, shown_as=None), self.clock(), reason)
            return
        _log.warning("delivery_refused", extra={"delivery_id": delivery.id, "reason": reason})
        await self._end(delivery, "refused", reason)

    async def _later(self, delivery: Delivery, reason: str, seconds: float | None) -> None:
        """Wait as long as the platform requests; the whole account waits: the limit may apply to all chats."""
        if seconds is not None:
            self._free_at = max(self._free_at, asyncio.get_running_loop().time() + seconds)
        # Repeated retries after 0 s would be a hot loop.
        wait = seconds or backoff(delivery.tries - 1, first=_FIRST_PAUSE)
        await self._put_back(delivery, self.clock() + timedelta(seconds=wait), reason)

    async def _put_back(self, delivery: Delivery, due_at: datetime, reason: str) -> None:
        """Store that a part has not arrived; retry until the store accepts it, as the outcome is certain."""
        work = partial(deliveries.put_back, delivery=delivery, due_at=due_at, reason=reason)
        await self.database.persist(work, pause=self.pause)

    async def _unsure(self, connector: Connector[Any], delivery: Delivery, reason: str) -> None:
        """Repeat or end a delivery that may have arrived: see ``Repeat``. An edit can always be repeated."""
        again = replace(delivery, unsure=delivery.unsure + 1)
        is_safe = connector.abilities.repeat != "blind" or bool(delivery.shown_as)
        may_repeat = connector.settings.on_ambiguous == "resend" and delivery.unsure == 0
        if not is_safe and not may_repeat:
            _log.warning("delivery_ambiguous", extra={"delivery_id": delivery.id, "reason": reason})
            await self._end(delivery, "ambiguous", reason)
            return
        due_at = self.clock() + timedelta(seconds=backoff(delivery.tries - 1, first=_FIRST_PAUSE))
        await self.database.run(partial(deliveries.put_back, delivery=again, due_at=due_at, reason=reason))

    async def _end(self, delivery: Delivery, state: deliveries.DeliveryState, reason: str) -> None:
        await self.database.run(
            partial(deliveries.end, number=delivery.number, state=state, at=self.clock(), reason=reason)
        )
        self._publish(delivery, state)

    def _publish(self, delivery: Delivery, state: deliveries.DeliveryState) -> None:
        ids = {"deliveryId": delivery.id, "turnId": delivery.turn_id, "account": self.account}
        self.activity.publish("delivery.ended", delivery.owner, {**ids, "state": state})

    async def _take_turn(self, pace: float) -> None:
        """Wait until the account may send again."""
        async with self._turnstile:
            now = asyncio.get_running_loop().time()
            if self._free_at > now:
                await self.pause(self._free_at - now)
            self._free_at = max(self._free_at, now) + 1 / pace


def _waits(delivery: Delivery, now: datetime) -> bool:
    """Return whether a part waits for its next attempt.

    The first attempt waits for nothing: the clock that dated the delivery may be another replica's. A due time
    that is later than the expiry of every reply was set by a clock that was ahead.
    """
    return delivery.reason is not None and now < delivery.due_at <= now + FRESH


def _part(abilities: Capabilities, delivery: Delivery) -> Part:
    mark = REPEATED if delivery.unsure and abilities.repeat == "blind" and not delivery.shown_as else ""
    return Part(
        key=delivery.key,
        place=read_place(delivery.place),
        text=mark + abilities.render(delivery.text),
        number=delivery.part,
        edits=delivery.shown_as or None,
    )
