"""Rows of the audit record: in the transaction of an act that changes rows itself, and never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import GATEWAY_OWNER, new_id
from torana.store.tables import audit

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something an operator does: by whom, when, and from where (an address, or ``command line``)."""

    principal: str
    source: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What was done, to whom or what. ``detail`` never holds a text of a user's."""

    id: str
    act: Act
    action: str
    target: str
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])


def record(connection: Connection, act: Act, action: str, target: str, **detail: Any) -> None:
    """Write down an act, such as ``token.create``, with its target's id."""
    connection.execute(
        sa.insert(audit),
        {
            "id": new_id("aud"),
            "at": act.at,
            "principal": act.principal,
            "source": act.source,
            "action": action,
            "target": target,
            "detail": json.dumps(detail),
        },
    )


def on_a_users(owner: str, act: Act | None) -> Act | None:
    """The act, where it reaches into what a user's own token made; in the gateway's own it is everyday."""
    return None if owner == GATEWAY_OWNER else act


def recorded(
    work: Callable[[Connection], T], act: Act | None, action: str, target: str, **detail: Any
) -> Callable[[Connection], T]:
    """The same work with the act written down in its transaction; without an act, the work alone."""
    if act is None:
        return work

    def both(connection: Connection) -> T:
        done = work(connection)
        record(connection, act, action, target, **detail)
        return done

    return both


def listed(connection: Connection, *, before: tuple[datetime, str] | None, limit: int) -> list[Entry]:
    """What was done, the newest first; behind a place in that order."""
    query = sa.select(audit)
    if before is not None:
        at, entry_id = before
        query = query.where((audit.c.at < at) | ((audit.c.at == at) & (audit.c.id < entry_id)))
    newest_first = query.order_by(audit.c.at.desc(), audit.c.id.desc()).limit(limit)
    return [_entry(row) for row in connection.execute(newest_first).mappings()]


def _entry(row: RowMapping) -> Entry:
    act = Act(principal=row["principal"], source=row["source"], at=row["at"])
    detail = json.loads(row["detail"])
    return Entry(id=row["id"], act=act, action=row["action"], target=row["target"], detail=detail)
