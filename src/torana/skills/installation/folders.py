"""Keep the folders of installed skills equal to the archives in the database, which replicas share."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from torana.aio import run_uncancellable
from torana.skills.errors import SkillInvalid
from torana.skills.installation.archive import check_size
from torana.skills.installation.sources import pack_folder
from torana.skills.installation.staging import restore
from torana.store.engine.database import Database
from torana.store.rows.extensions import skill_archives
from torana.store.rows.extensions.skills import SkillDecision

_log = logging.getLogger(__name__)


class StoredFolders:
    """The folders below ``root``.

    A folder that cannot be unpacked or packed is logged and left out: its skill is shown as broken here, or on
    the other replicas.
    """

    def __init__(self, *, database: Database, root: Path) -> None:
        self._database = database
        self._root = root

    async def restore_missing(self, decisions: Iterable[SkillDecision]) -> None:
        """Unpack the archive of each missing folder, such as one that another replica installed."""
        for folder in (folder for decision in decisions for folder in decision.folders):
            if (self._root / folder).exists():
                continue
            archive = await self._database.run(partial(skill_archives.read, folder=folder))
            if archive is None:
                continue
            try:
                await run_uncancellable(partial(restore, archive, root=self._root, folder=folder))
            except (SkillInvalid, OSError) as error:
                _log.warning("skill_not_unpacked", extra={"folder": folder, "reason": str(error)})

    async def store_missing(self, decisions: Iterable[SkillDecision]) -> None:
        """Store the archive of each folder that has none, because an earlier version installed it."""
        stored = await self._database.run(skill_archives.list_folders)
        for decision in decisions:
            for folder in (one for one in decision.folders if one not in stored):
                try:
                    archive = await run_uncancellable(partial(_pack, self._root / folder / decision.slug))
                except (SkillInvalid, OSError) as error:
                    _log.warning("skill_not_stored", extra={"folder": folder, "reason": str(error)})
                else:
                    await self._database.run(partial(skill_archives.put, folder=folder, archive=archive))


def _pack(folder: Path) -> bytes:
    archive = pack_folder(folder)
    check_size(archive)
    return archive
