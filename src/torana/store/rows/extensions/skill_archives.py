"""Rows of the files of installed skills: for each folder an archive, in parts."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.tables import skill_archives

#: The maximum size of a part in bytes, and of an archive in parts.
_PART = 1024 * 1024
_PARTS = 20


def put(connection: Connection, folder: str, archive: bytes) -> None:
    """Store the archive of a folder, unless it has one."""
    if connection.execute(_FOLDERS.where(skill_archives.c.folder == folder)).first() is not None:
        return
    parts = [archive[start : start + _PART] for start in range(0, len(archive), _PART)]
    rows = [{"folder": folder, "number": number, "body": part} for number, part in enumerate(parts)]
    connection.execute(sa.insert(skill_archives), rows)


def read(connection: Connection, folder: str) -> bytes | None:
    """Return the archive of a folder, None if it has none. Parts that are too large are left out."""
    parts = list(connection.execute(_READ, {"folder": folder}).scalars())
    return b"".join(parts) if parts else None


def list_folders(connection: Connection) -> frozenset[str]:
    """Return the folders that have an archive."""
    return frozenset(connection.execute(_FOLDERS).scalars())


def delete_all_but(connection: Connection, folders: Collection[str]) -> None:
    """Delete the archives of other folders."""
    connection.execute(sa.delete(skill_archives).where(skill_archives.c.folder.not_in(folders)))


_FOLDERS = sa.select(skill_archives.c.folder).where(skill_archives.c.number == 0)
_READ = (
    sa.select(skill_archives.c.body)
    .where(
        skill_archives.c.folder == sa.bindparam("folder"),
        skill_archives.c.number.between(0, _PARTS - 1),
        sa.func.length(skill_archives.c.body) <= _PART,
    )
    .order_by(skill_archives.c.number)
)
