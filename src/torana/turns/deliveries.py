"""Deliveries to chat platforms for the operator: list, retry, drop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from torana.errors import NotFound, NotHeld
from torana.messages import DeliveryState, utc_now
from torana.paging import NUMBER_KEY, Page, cut, read_cursor
from torana.store.engine.database import Connection, Database
from torana.store.rows import deliveries as rows
from torana.store.rows.audit import Act, record
from torana.store.rows.deliveries import HELD, Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliveries:
    """Lists and changes the deliveries of all accounts. Every change is recorded in the audit record."""

    database: Database
    wake: Callable[[str], None]
    clock: Callable[[], datetime] = utc_now

    async def list_deliveries(
        self,
        owner: str,
        *,
        state: DeliveryState | None = None,
        limit: int,
        after: str | None = None,
    ) -> Page[Delivery]:
        """Return the owner's deliveries, newest first. Raises ``InvalidField`` for an invalid cursor."""
        before = read_cursor(after, NUMBER_KEY)
        work = partial(rows.list_deliveries, owner=owner, state=state, before=before, limit=limit + 1)
        return cut(await self.database.run(work), limit, lambda delivery: delivery.number, NUMBER_KEY)

    async def retry(self, owner: str, delivery_id: str, *, act: Act) -> Delivery:
        """Send a held delivery again, as if it were new; the platform may show it twice.

        Raises ``NotFound``, and ``NotHeld`` for a delivery that is not held.
        """
        delivery = await self.database.run(
            partial(_retry, owner=owner, delivery_id=delivery_id, at=self.clock(), act=act)
        )
        self.wake(delivery.account)
        return delivery

    async def drop(self, owner: str, delivery_id: str, *, act: Act) -> Delivery:
        """Drop a held or pending delivery. Raises ``NotFound`` and ``NotHeld``."""
        work = partial(_drop, owner=owner, delivery_id=delivery_id, at=self.clock(), act=act)
        delivery = await self.database.run(work)
        self.wake(delivery.account)  # the deliveries behind it no longer wait
        return delivery


def _retry(connection: Connection, owner: str, delivery_id: str, at: datetime, act: Act) -> Delivery:
    delivery = _require_delivery(connection, owner, delivery_id, HELD)
    rows.retry(connection, delivery, at)
    return _record_act(connection, delivery, act, "delivery.retry")


def _drop(connection: Connection, owner: str, delivery_id: str, at: datetime, act: Act) -> Delivery:
    delivery = _require_delivery(connection, owner, delivery_id, (*HELD, "pending"))
    rows.end(connection, delivery.number, "dropped", at, reason=delivery.reason)
    return _record_act(connection, delivery, act, "delivery.drop")


def _require_delivery(
    connection: Connection, owner: str, delivery_id: str, states: tuple[DeliveryState, ...]
) -> Delivery:
    delivery = rows.get(connection, owner, delivery_id)
    if delivery is None:
        raise NotFound(f"there is no delivery {delivery_id!r}")
    if delivery.state not in states:
        raise NotHeld(
            f"The delivery is {delivery.state}. Only a delivery that is {' or '.join(states)} can be changed."
        )
    return delivery


def _record_act(connection: Connection, delivery: Delivery, act: Act, action: str) -> Delivery:
    record(connection, act, action, delivery.id, account=delivery.account)
    return rows.get(connection, delivery.owner, delivery.id) or delivery
