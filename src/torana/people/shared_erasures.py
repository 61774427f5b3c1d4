"""Carry out the erasures of all replicas on the files and the memory of this replica."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from torana.errors import StoreUnavailable
from torana.people.erased_files import ErasedFiles
from torana.store.engine.database import Database
from torana.store.engine.postgres import erasures

#: The file in the data directory with the id of the last erasure that was carried out there.
CURSOR_NAME = "last-erasure"

_log = logging.getLogger(__name__)


class SharedErasures:
    """Carries out missed erasures at the start, and later those that other replicas announce.

    A file in the data directory has the id of the last erasure that was carried out there. Without this file,
    all erasures are carried out.
    """

    def __init__(
        self, *, database: Database, files: ErasedFiles, data_dir: Path, pending: asyncio.Event
    ) -> None:
        """``pending`` is set when there are erasures that this replica has not carried out."""
        self._database = database
        self.files = files
        self._cursor = data_dir / CURSOR_NAME
        self._pending = pending
        self._working = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Carry out the missed erasures; a replica also begins to follow new ones. Does nothing on SQLite.

        Returns whether all erasures are carried out.
        """
        if not self._database.records_erasures:
            return True
        failed = await self._try(failed=False)
        if self._database.replica is not None:
            self._task = asyncio.create_task(self._follow(failed=failed), name="erasures")
        return not failed

    async def stop(self) -> None:
        """Stop following new erasures."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def carry_out(self) -> None:
        """Carry out the erasures that are new to the data directory.

        Raises ``OSError`` and ``StoreUnavailable``.
        """
        async with self._working:
            last = await asyncio.to_thread(self._read_cursor)
            found = await self._database.run(partial(erasures.list_after, last=last))
            if found is not None:
                await self.files.remove(found.users, found.turn_ids)
                last = found.last
                await asyncio.to_thread(self._write_cursor, last)
            await self._database.run(partial(erasures.confirm, last=last))

    async def _follow(self, *, failed: bool) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            failed = await self._try(failed=failed)

    async def _try(self, *, failed: bool) -> bool:
        """Carry out erasures; return whether they failed. The next check of the replicas repeats them then."""
        try:
            await self.carry_out()
        except Exception as error:  # noqa: BLE001 - the other data must be erased
            level = logging.DEBUG if failed else logging.ERROR
            unexpected = None if isinstance(error, OSError | StoreUnavailable) else error
            _log.log(level, "erasure_not_carried_out", extra={"reason": str(error)}, exc_info=unexpected)
            return True
        return False

    def _read_cursor(self) -> str:
        try:
            return self._cursor.read_text().strip()
        except FileNotFoundError:
            return ""

    def _write_cursor(self, last: str) -> None:
        partial_file = self._cursor.with_name(f"{CURSOR_NAME}.part")
        partial_file.write_text(f"{last}\n")
        partial_file.replace(self._cursor)
