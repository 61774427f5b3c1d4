"""Remove erased users from the files and the memory of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torana.store.backup import erasure
from torana.store.backup.upgrade_copies import delete_copies
from torana.store.engine.database import Database
from torana.store.workspace_folders import delete_folder
from torana.telemetry import drop_turns, logged_turns

if TYPE_CHECKING:
    from torana.turns import TurnReader


class ErasedFiles:
    """The data directory, the log files and the recorded events of this process."""

    def __init__(self, *, database: Database, reader: TurnReader, data_dir: Path) -> None:
        self._database = database
        self._reader = reader
        self._data_dir = data_dir

    async def remove(self, users: Collection[str], turn_ids: Collection[str]) -> int:
        """Remove users whose rows are deleted. Return the number of deleted copies.

        ``turn_ids`` are their turns. Raises ``OSError`` and ``StoreUnavailable``.
        """
        self._reader.forget(turn_ids)
        for user in users:
            await asyncio.to_thread(delete_folder, self._data_dir, user)
        await self._clean_logs()
        return await asyncio.to_thread(delete_copies, self._data_dir)

    async def _clean_logs(self) -> None:
        # The turns are taken from the log files, not from this deletion: an earlier call may have been
        # interrupted.
        logged = await asyncio.to_thread(logged_turns)
        erased = await self._database.run(partial(erasure.erased_among, turn_ids=logged))
        await asyncio.to_thread(drop_turns, erased)
