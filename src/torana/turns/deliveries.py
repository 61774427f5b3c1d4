"""What is to be said on chat platforms, for the operator: listed, tried again, dropped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from torana.errors import NotFound, NotHeld
from torana.messages import utc_now
from torana.paging import NUMBER_KEY, Page, cut, read_cursor
from torana.store import deliveries as rows
from torana.store.audit import Act, record
from torana.store.database import Connection, Database
from torana.store.deliveries import HELD, Delivery, DeliveryState


class Deliveries:
    """The deliveries of all accounts. Every change is written down in the audit record."""

    def __init__(
        self,
        *,
        database: Database,
        wake: Callable[[str], None],
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """``wake`` is told the account on which there is something to deliver."""
        self._database = database
        self._wake = wake
        self._clock = clock

    async def listed(
        self,
        owner: str,
        *,
        state: DeliveryState | None = None,
        limit: int,
        after: str | None = None,
    ) -> Page[Delivery]:
        """The owner's deliveries, the newest first. Raises ``InvalidField`` for a cursor that no page gave."""
        before = read_cursor(after, NUMBER_KEY)
        work = partial(rows.listed, owner=owner, state=state, before=before, limit=limit + 1)
        return cut(await self._database.run(work), limit, lambda delivery: delivery.number, NUMBER_KEY)

    async def retry(self, owner: str, delivery_id: str, *, act: Act) -> Delivery:
        """Try a held delivery again, as if it were new: it may be shown twice then.

        Raises ``NotFound``, and ``NotHeld`` for one that is under way or done with.
        """
        delivery = await self._database.run(
            partial(_retry, owner=owner, delivery_id=delivery_id, at=self._clock(), act=act)
        )
        self._wake(delivery.account)
        return delivery

    async def drop(self, owner: str, delivery_id: str, *, act: Act) -> Delivery:
        """Give up a delivery that is not being sent at this moment. Raises ``NotFound`` and ``NotHeld``."""
        work = partial(_drop, owner=owner, delivery_id=delivery_id, at=self._clock(), act=act)
        delivery = await self._database.run(work)
        self._wake(delivery.account)  # what stands behind it need not wait any more
        return delivery


def _retry(connection: Connection, owner: str, delivery_id: str, at: datetime, act: Act) -> Delivery:
    delivery = _held(connection, owner, delivery_id, HELD)
    rows.retry(connection, delivery, at)
    return _recorded(connection, delivery, act, "delivery.retry")


def _drop(connection: Connection, owner: str, delivery_id: str, at: datetime, act: Act) -> Delivery:
    delivery = _held(connection, owner, delivery_id, (*HELD, "pending"))
    rows.end(connection, delivery.number, "dropped", at, reason=delivery.reason)
    return _recorded(connection, delivery, act, "delivery.drop")


def _held(connection: Connection, owner: str, delivery_id: str, states: tuple[DeliveryState, ...]) -> Delivery:
    delivery = rows.get(connection, owner, delivery_id)
    if delivery is None:
        raise NotFound(f"there is no delivery {delivery_id!r}")
    if delivery.state not in states:
        raise NotHeld(
            f"The delivery is {delivery.state}; only one that is {' or '.join(states)} can be changed."
        )
    return delivery


def _recorded(connection: Connection, delivery: Delivery, act: Act, action: str) -> Delivery:
    record(connection, act, action, delivery.id, account=delivery.account)
    return rows.get(connection, delivery.owner, delivery.id) or delivery
