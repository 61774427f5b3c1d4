"""The files that tools store for each user, in rows of the database.

The tools of all replicas share them. Names have folders, but only files are stored.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from sqlalchemy.engine import Connection

from torana.characters import normalize
from torana.messages import utc_now
from torana.store.engine.database import Database
from torana.store.rows import workspace_files as rows
from torana.store.rows.workspace_files import WorkspaceFile, owner_key
from torana.workers.fair_slots import FairSlots

#: Maximum depth of folders, and bytes of a name.
_DEPTH = 8
_NAME_BYTES = 200
#: The maximum number of calls that wait for the database.
_CALLS = 4
_PUNCTUATION = frozenset(" ._-+,@()'&=")


class FileFault(Exception):
    """A file cannot be read or written; the message names the file, the reason and the remedy."""


class FileChanged(Exception):
    """The content of a file is not the expected one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """The files of all users; each user has ``max_bytes`` in at most ``max_files`` files.

    A call takes effect as one transaction. The calls of one user run one after the other, in their order, so
    that messages of other users do not wait for all of them. All methods raise ``StoreUnavailable`` as
    ``Database.run`` does.
    """

    database: Database
    max_bytes: int
    max_files: int
    clock: Callable[[], datetime] = utc_now
    _slots: FairSlots = field(default_factory=partial(FairSlots, total=_CALLS, per_user=1), init=False)

    async def list_files(self, user: str) -> list[WorkspaceFile]:
        """Return the user's files by name."""
        async with self._slots.slot(user):
            return await self.database.read(partial(rows.list_files, owner=owner_key(user)))

    async def read(self, user: str, name: str, *, limit: int) -> bytes:
        """Return the first ``limit`` bytes of a file. Raises ``FileFault``."""
        key = _key(_parts(name))
        work = partial(rows.read, owner=owner_key(user), key=key, limit=limit)
        async with self._slots.slot(user):
            body = await self.database.read(work)
        if body is None:
            raise _missing(name)
        return body

    async def write(self, user: str, name: str, body: bytes) -> bool:
        """Store ``body`` under ``name``; return whether it replaced a file.

        Idempotent. Raises ``FileFault``, also if the quota would be exceeded.
        """
        parts = _parts(name)
        async with self._slots.slot(user):
            return await self.database.run(lambda connection: self._write(connection, user, parts, body))

    async def replace(self, user: str, name: str, body: bytes, *, before: bytes | None) -> None:
        """Store ``body`` if the file has the content ``before``, or does not exist if ``before`` is None.

        Raises ``FileChanged`` for another content, and ``FileFault`` as ``write`` does.
        """
        parts = _parts(name)

        def work(connection: Connection) -> None:
            limit = len(before or b"") + 1
            if rows.read(connection, owner_key(user), _key(parts), limit=limit) != before:
                raise FileChanged
            self._write(connection, user, parts, body)

        async with self._slots.slot(user):
            await self.database.run(work)

    async def delete(self, user: str, name: str) -> None:
        """Delete a file. Raises ``FileFault``."""
        key = _key(_parts(name))
        async with self._slots.slot(user):
            found = await self.database.run(partial(rows.delete, owner=owner_key(user), key=key))
        if not found:
            raise _missing(name)

    def _write(self, connection: Connection, user: str, parts: list[str], body: bytes) -> bool:
        owner, key, name = owner_key(user), _key(parts), "/".join(parts)
        replaced = rows.find(connection, owner, key)
        if replaced is None:
            _refuse_folder(connection, owner, parts)
            name = _spell(connection, owner, parts)
        self._check_quota(connection, owner, name, len(body), replaced=replaced)
        rows.put(connection, owner, key, name=name, body=body, at=self.clock())
        return replaced is not None

    def _check_quota(
        self, connection: Connection, owner: str, name: str, size: int, *, replaced: WorkspaceFile | None
    ) -> None:
        """Check the quota for a new size; ``replaced`` is the file of that name, if it exists."""
        count, total = rows.totals(connection, owner)
        if count - (replaced is not None) >= self.max_files:
            raise FileFault(f"The limit of {self.max_files:,} files is reached; delete a file first.")
        room = self.max_bytes - total + (0 if replaced is None else replaced.size)
        if size > room:
            raise FileFault(f"{name} has {size:,} bytes, and {max(room, 0):,} are free; delete a file first.")


def name_key(name: str) -> str:
    """Return a form of a name that is equal for names that look the same."""
    return _key(name.split("/"))


def _key(parts: list[str]) -> str:
    return "/".join(normalize("NFKC", normalize("NFKC", part).casefold()) for part in parts)


def _missing(name: str) -> FileFault:
    return FileFault(f"There is no file {name}.")


def _refuse_folder(connection: Connection, owner: str, parts: list[str]) -> None:
    """Raise ``FileFault`` if a new file has the name of a folder, or if one of its folders is a file."""
    if rows.spelling_of(connection, owner, _key(parts)) is not None:
        raise FileFault(f"{'/'.join(parts)} is a folder; choose another name.")
    folders = [_key(parts[:depth]) for depth in range(1, len(parts))]
    if folders and (file := rows.existing(connection, owner, folders)) is not None:
        raise FileFault(f"{file} is a file, so it cannot contain files; choose another name.")


def _spell(connection: Connection, owner: str, parts: list[str]) -> str:
    """Return the name of a new file, with existing folders spelled as in the names of their other files."""
    for depth in range(len(parts) - 1, 0, -1):
        inside = rows.spelling_of(connection, owner, _key(parts[:depth]))
        if inside is not None:
            return "/".join([*inside.split("/")[:depth], *parts[depth:]])
    return "/".join(parts)


def _parts(name: str) -> list[str]:
    """Return the folders and the name of a file path, in Unicode's composed form (NFC)."""
    parts = normalize("NFC", name).split("/")
    if not name or len(parts) > _DEPTH:
        raise FileFault(f"A file needs a name such as notes.txt or trips/oslo.md, with at most {_DEPTH} parts.")
    for part in parts:
        if not _usable(part):
            raise FileFault(
                f"{part[:80]!r} is not a valid file name; use letters, digits, "
                "spaces and ._-+,@()'&= , with no "
                "dot or space at either end."
            )
    return parts


def _usable(part: str) -> bool:
    """Return whether a name has only letters, digits, marks and safe punctuation, and is not hidden."""
    if not part or part[0] in " .-" or part[-1] in " ." or len(part.encode("utf-8", "replace")) > _NAME_BYTES:
        return False
    return all(
        char in _PUNCTUATION or char.isalnum() or unicodedata.category(char) in {"Mn", "Mc"} for char in part
    )
