"""Rows of leases: the process that listens on a platform's account, and places in queues of processes."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.tables import leases

_SERVER_TIME = sa.select(sa.func.clock_timestamp(type_=sa.DateTime(timezone=True)))


def shared_time(connection: Connection, local: datetime) -> datetime:
    """Return the time of the PostgreSQL server, because the clocks of replicas may differ, else ``local``."""
    return connection.execute(_SERVER_TIME).scalar_one() if connection.dialect.name == "postgresql" else local


def take(connection: Connection, account: str, holder: str, *, now: datetime, until: datetime) -> bool:
    """Take or renew the account's lease; return False while another holder has it.

    A lease that lasts more than twice as long as this one was written when the clock was ahead, and counts as
    expired.
    """
    too_long = leases.c.until > until + (until - now)
    mine = (leases.c.holder == holder) | (leases.c.until < now) | too_long
    renewed = sa.update(leases).where(leases.c.account == account, mine).values(holder=holder, until=until)
    if connection.execute(renewed).rowcount:
        return True
    if connection.execute(sa.select(leases.c.holder).where(leases.c.account == account)).first() is not None:
        return False
    connection.execute(sa.insert(leases), {"account": account, "holder": holder, "until": until})
    return True


def is_held(connection: Connection, account: str, holder: str) -> bool:
    """Return whether the holder has the lease; no other can take it before the commit."""
    mine = sa.select(leases.c.until).where(leases.c.account == account, leases.c.holder == holder)
    return connection.execute(mine.with_for_update()).first() is not None


def give_back(connection: Connection, account: str, holder: str) -> None:
    """Release the lease if the holder has it."""
    connection.execute(sa.delete(leases).where(leases.c.account == account, leases.c.holder == holder))


def draw_ticket(connection: Connection, queue: str, holder: str, *, now: datetime, until: datetime) -> str:
    """Take the last place of a queue until a time, and return its ticket. Expired places are deleted.

    ``holder`` begins with the id of the replica, and has no other place.
    """
    is_expired = leases.c.account.like("queue:%"), leases.c.until < now
    connection.execute(sa.delete(leases).where(*is_expired))
    ticket = f"queue:{queue}:{now.astimezone(UTC):%Y%m%d%H%M%S%f}:{holder}"
    connection.execute(sa.insert(leases), {"account": ticket, "holder": holder, "until": until})
    return ticket


def is_first(connection: Connection, ticket: str, *, now: datetime) -> bool:
    """Return whether no earlier ticket of the queue is valid."""
    queue = ticket.rsplit(":", 2)[0]
    earlier = leases.c.account.startswith(f"{queue}:", autoescape=True), leases.c.account < ticket
    ahead = sa.select(leases.c.account).where(*earlier, leases.c.until >= now).limit(1)
    return connection.execute(ahead).first() is None


def leave_queue(connection: Connection, holder: str) -> None:
    """Give the holder's place up, if it has one."""
    connection.execute(sa.delete(leases).where(leases.c.holder == holder))
