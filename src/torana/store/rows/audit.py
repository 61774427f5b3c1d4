"""Rows of the audit record: written in the transaction of the audited change, and never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import GATEWAY_OWNER, new_id
from torana.store.engine.dialects import unread
from torana.store.engine.tables import audit, newest_first

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An action of an operator: principal, time and source (an address, or ``command line``)."""

    principal: str
    source: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action and its object. ``detail`` never contains a user's text."""

    id: str
    act: Act
    action: str
    target: str
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])


def record(connection: Connection, act: Act, action: str, target: str, **detail: Any) -> None:
    """Store an action, such as ``token.create``, with the id of its object."""
    connection.execute(
        _RECORD,
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


def auditable_act(owner: str, act: Act | None) -> Act | None:
    """Return the act if the data belongs to a user; actions on the gateway's own data are not recorded."""
    return None if owner == GATEWAY_OWNER else act


def with_record(
    work: Callable[[Connection], T], act: Act | None, action: str, target: str, **detail: Any
) -> Callable[[Connection], T]:
    """Return the work extended by an audit record in its transaction; without an act, the work itself."""
    if act is None:
        return work

    def both(connection: Connection) -> T:
        done = work(connection)
        record(connection, act, action, target, **detail)
        return done

    return both


def list_entries(
    connection: Connection, *, before: tuple[datetime, str] | None, limit: int
) -> list[AuditEntry]:
    """Return the entries older than ``before`` (a time and an id), newest first."""
    page = newest_first(sa.select(audit), audit.c.at, before=before, limit=limit)
    return [_entry(row) for row in connection.execute(page).mappings()]


def _entry(row: RowMapping) -> AuditEntry:
    act = Act(principal=row["principal"], source=row["source"], at=row["at"])
    detail = json.loads(row["detail"])
    return AuditEntry(id=row["id"], act=act, action=row["action"], target=row["target"], detail=detail)


_RECORD = unread(sa.insert(audit))
