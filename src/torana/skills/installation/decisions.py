"""Store the operator's decisions about skills in the database, and apply them in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torana.aio import end_task, run_uncancellable, wait_uncancellable
from torana.errors import SkillConflict
from torana.skills.errors import SkillInvalid
from torana.skills.grants import InstalledSkills
from torana.skills.installation.archive import check_size
from torana.skills.installation.sources import pack_folder
from torana.skills.installation.staging import restore, sweep
from torana.skills.library import Skills
from torana.store.engine.database import Connection, Database, follow_changes
from torana.store.rows.audit import Act
from torana.store.rows.extensions import skill_archives
from torana.store.rows.extensions import skills as rows
from torana.store.rows.extensions.skills import SkillDecision

_log = logging.getLogger(__name__)


class StoredDecisions:
    """Stores decisions one at a time, and applies those of all replicas to the loaded skills and the folders.

    The database is authoritative: a folder that no row names is ignored and deleted, even after a crash, and a
    missing folder is unpacked from its archive in the database. A folder that cannot be unpacked or packed is
    logged and left out: its skill is shown as broken here, or on the other replicas.
    """

    def __init__(self, *, database: Database, skills: Skills, installed: InstalledSkills) -> None:
        self._database = database
        self._skills = skills
        self._installed = installed
        self._one_at_a_time = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def start(self, changed_elsewhere: asyncio.Event | None = None) -> None:
        """Apply the decisions, and delete the remains of interrupted installations.

        ``changed_elsewhere`` is set when another replica may have changed decisions.
        """
        async with self.changing():
            await self._store_missing(self._installed.decisions())
        if changed_elsewhere is not None:
            self._following = asyncio.create_task(
                follow_changes(changed_elsewhere, self._follow, name="skills"), name="skills"
            )

    async def stop(self) -> None:
        if self._following is not None:
            await end_task(self._following)

    @asynccontextmanager
    async def changing(self) -> AsyncGenerator[None]:
        """Run one change at a time in the block, and apply the decisions at its end, even after an error.

        The stored decisions are loaded before the block. A cancellation waits until the decisions are applied.
        """
        async with self._one_at_a_time:
            await self._load()
            try:
                yield
            finally:
                await wait_uncancellable(asyncio.create_task(self._apply()))

    async def put(self, decision: SkillDecision, *, act: Act, action: str, **detail: Any) -> SkillDecision:
        """Store and return a decision.

        Raises ``SkillConflict`` if another replica has changed the skill since ``changing`` began.
        """
        before = self._installed.decision(decision.slug)
        await self._store(partial(rows.put, decision=decision, before=before, act=act, action=action, **detail))
        return decision

    async def remove(self, decision: SkillDecision, *, act: Act) -> None:
        """Delete a decision. Raises ``SkillConflict`` as ``put`` does."""
        await self._store(partial(rows.remove, before=decision, act=act))

    async def _store(self, work: Callable[[Connection], None]) -> None:
        try:
            await self._database.run(work)
        except rows.DecisionChanged:
            raise SkillConflict(
                "Another replica changed the skill meanwhile; look at it and try again."
            ) from None

    async def _follow(self) -> None:
        async with self._one_at_a_time:
            await self._apply()

    async def _apply(self) -> None:
        await self._load()
        keep = {folder for decision in self._installed.decisions() for folder in decision.folders}
        await run_uncancellable(partial(self._clear, keep))

    async def _load(self) -> None:
        decided = await self._database.run(rows.list_decisions)
        await self._restore_missing(decided.values())
        self._installed.decide(decided)

    async def _restore_missing(self, decisions: Iterable[SkillDecision]) -> None:
        """Unpack the archive of each missing folder, such as one that another replica installed."""
        for folder in (folder for decision in decisions for folder in decision.folders):
            if (self._installed.root / folder).exists():
                continue
            archive = await self._database.run(partial(skill_archives.read, folder=folder))
            if archive is None:
                continue
            try:
                await run_uncancellable(partial(restore, archive, root=self._installed.root, folder=folder))
            except (SkillInvalid, OSError) as error:
                _log.warning("skill_not_unpacked", extra={"folder": folder, "reason": str(error)})

    async def _store_missing(self, decisions: Iterable[SkillDecision]) -> None:
        """Store the archive of each folder that has none, because an earlier version installed it."""
        stored = await self._database.run(skill_archives.list_folders)
        for decision in decisions:
            for folder in (one for one in decision.folders if one not in stored):
                path = self._installed.root / folder / decision.slug
                try:
                    archive = await run_uncancellable(partial(_pack, path))
                except (SkillInvalid, OSError) as error:
                    _log.warning("skill_not_stored", extra={"folder": folder, "reason": str(error)})
                else:
                    await self._database.run(partial(skill_archives.put, folder=folder, archive=archive))

    def _clear(self, keep: set[str]) -> None:
        self._skills.refresh()
        sweep(self._installed.root, keep=keep)


def _pack(folder: Path) -> bytes:
    archive = pack_folder(folder)
    check_size(archive)
    return archive
