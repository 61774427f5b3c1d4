"""Store the operator's decisions about skills in the database, and apply them in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from torana.aio import end_task, run_uncancellable, wait_uncancellable
from torana.errors import SkillConflict
from torana.skills.grants import InstalledSkills
from torana.skills.installation.folders import StoredFolders
from torana.skills.installation.staging import sweep
from torana.skills.library import Skills
from torana.store.engine.database import Connection, Database, retry_until_available
from torana.store.rows.audit import Act
from torana.store.rows.extensions import skills as rows
from torana.store.rows.extensions.skills import SkillDecision


class StoredDecisions:
    """Stores decisions one at a time, and applies those of all replicas to the loaded skills and the folders.

    The database is authoritative: a folder that no row names is ignored and deleted, even after a crash, and a
    missing folder is unpacked from its archive in the database.
    """

    def __init__(self, *, database: Database, skills: Skills, installed: InstalledSkills) -> None:
        self._database = database
        self._skills = skills
        self._installed = installed
        self._folders = StoredFolders(database=database, root=installed.root)
        self._one_at_a_time = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def start(self, changed_elsewhere: asyncio.Event | None) -> None:
        """Apply the decisions, and delete the remains of interrupted installations.

        ``changed_elsewhere`` is set when another replica may have changed decisions.
        """
        async with self.changing():
            await self._folders.store_missing(self._installed.decisions())
        if changed_elsewhere is not None:
            self._following = asyncio.create_task(self._follow(changed_elsewhere), name="skills")

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

    async def _follow(self, changed_elsewhere: asyncio.Event) -> None:
        while True:
            await changed_elsewhere.wait()
            changed_elsewhere.clear()
            async with self._one_at_a_time:
                await retry_until_available(self._apply, pause=asyncio.sleep)

    async def _apply(self) -> None:
        await self._load()
        keep = {folder for decision in self._installed.decisions() for folder in decision.folders}
        await run_uncancellable(partial(self._clear, keep))

    async def _load(self) -> None:
        decided = await self._database.run(rows.list_decisions)
        await self._folders.restore_missing(decided.values())
        self._installed.decide(decided)

    def _clear(self, keep: set[str]) -> None:
        self._skills.refresh()
        sweep(self._installed.root, keep=keep)
