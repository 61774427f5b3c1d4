"""Rows of records that a connector stores for its account, such as encryption keys."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.dialects import insert
from torana.store.engine.tables import connector_records as records


def load(connection: Connection, account: str, name: str) -> dict[str, bytes]:
    """Return the records of this name by their keys."""
    rows = connection.execute(_LOAD, {"account": account, "name": name})
    return {row.key: row.body for row in rows}


def save(connection: Connection, account: str, name: str, changes: Mapping[str, bytes | None]) -> None:
    """Store the records, and delete those whose value is None."""
    place = {"account": account, "name": name}
    new = [{**place, "key": key, "body": body} for key, body in changes.items() if body is not None]
    old = [{**place, "old": key} for key, body in changes.items() if body is None]
    if new:
        connection.execute(_PUT, new)
    if old:
        connection.execute(_DELETE, old)


_of_name = (records.c.account == sa.bindparam("account")) & (records.c.name == sa.bindparam("name"))
_LOAD = sa.select(records.c.key, records.c.body).where(_of_name)
_INSERT = insert(records)
_PUT = _INSERT.on_conflict_do_update(
    index_elements=["account", "name", "key"], set_={"body": _INSERT.excluded.body}
)
_DELETE = sa.delete(records).where(_of_name, records.c.key == sa.bindparam("old"))
