"""Rows of the files that tools store for users, by owner and key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.dialects import insert
from torana.store.engine.tables import workspace_files as files


@dataclass(frozen=True, slots=True)
class WorkspaceFile:
    """A stored file, without its content."""

    #: With forward slashes.
    name: str
    #: In bytes.
    size: int
    changed_at: datetime


def owner_key(user: str) -> str:
    """Return the key of a user's files."""
    return hashlib.sha256(user.encode()).hexdigest()[:32]


def list_files(connection: Connection, owner: str) -> list[WorkspaceFile]:
    """Return the files of an owner by name."""
    return [WorkspaceFile(*row) for row in connection.execute(_LIST, {"owner": owner})]


def totals(connection: Connection, owner: str) -> tuple[int, int]:
    """Return the number of an owner's files, and of their bytes."""
    count, size = connection.execute(_TOTALS, {"owner": owner}).one()
    return count, int(size)


def read(connection: Connection, owner: str, key: str, *, limit: int) -> bytes | None:
    """Return the first ``limit`` bytes of a file, None if there is none."""
    row = connection.execute(_READ, {"owner": owner, "key": key, "limit": limit}).first()
    return None if row is None else row[0] or b""  # SQLite's substr() returns NULL for an empty body


def find(connection: Connection, owner: str, key: str) -> WorkspaceFile | None:
    """Return a file, None if there is none."""
    row = connection.execute(_FIND, {"owner": owner, "key": key}).first()
    return None if row is None else WorkspaceFile(*row)


def spelling_of(connection: Connection, owner: str, key: str) -> str | None:
    """Return the name of one of the files in the folder with this key, None if there is no such folder."""
    # In the order of code points, "0" is next to "/".
    return connection.execute(_INSIDE, {"owner": owner, "first": f"{key}/", "end": f"{key}0"}).scalar()


def existing(connection: Connection, owner: str, keys: Sequence[str]) -> str | None:
    """Return the name of a file with one of the keys, None if there is none."""
    return connection.execute(_AMONG, {"owner": owner, "keys": list(keys)}).scalar()


def put(connection: Connection, owner: str, key: str, *, name: str, body: bytes, at: datetime) -> None:
    """Store a file, or replace the content of the file with this key, which keeps its name."""
    new = {"size": len(body), "changed_at": at, "body": body}
    statement = insert(files).values(owner=owner, key=key, name=name, **new)
    connection.execute(statement.on_conflict_do_update(index_elements=["owner", "key"], set_=new))


def delete(connection: Connection, owner: str, key: str) -> bool:
    """Delete a file; return whether it existed."""
    chosen = (files.c.owner == owner) & (files.c.key == key)
    return connection.execute(sa.delete(files).where(chosen)).rowcount > 0


def delete_all(connection: Connection, owner: str) -> int:
    """Delete the files of an owner, and return their number."""
    return connection.execute(sa.delete(files).where(files.c.owner == owner)).rowcount


_of_owner = files.c.owner == sa.bindparam("owner")
_chosen = _of_owner & (files.c.key == sa.bindparam("key"))
_FILES = sa.select(files.c.name, files.c.size, files.c.changed_at)
_LIST = _FILES.where(_of_owner).order_by(files.c.name)
_FIND = _FILES.where(_chosen)
_TOTALS = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(files.c.size), 0)).where(_of_owner)
_READ = sa.select(sa.func.substr(files.c.body, 1, sa.bindparam("limit"), type_=sa.LargeBinary())).where(_chosen)
_INSIDE = (
    sa.select(files.c.name)
    .where(_of_owner, files.c.key >= sa.bindparam("first"), files.c.key < sa.bindparam("end"))
    .order_by(files.c.key)
    .limit(1)
)
_AMONG = (
    sa.select(files.c.name).where(_of_owner, files.c.key.in_(sa.bindparam("keys", expanding=True))).limit(1)
)
