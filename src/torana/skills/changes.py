"""Skills are installed, approved, switched off and on, updated and removed: one change at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from torana.errors import NotFound, SkillChanged, SkillConflict, SkillRefused
from torana.lasting import finished, to_its_end
from torana.messages import utc_now
from torana.skills.faults import SkillInvalid
from torana.skills.fetching import Fetcher
from torana.skills.installed import CHANGED, InstalledSkills, written
from torana.skills.library import CORE_DIR, Skills
from torana.skills.skill import Skill, parse_skill
from torana.skills.sources import read_source
from torana.skills.staging import Staged, stage, sweep
from torana.skills.standing import SkillStandings
from torana.store import skills as rows
from torana.store.audit import Act
from torana.store.database import Database
from torana.store.skills import Decision

#: The origin of an archive that somebody sent.
UPLOAD = "upload"
INSTALLED_LIMIT = 500


class SkillChanges:
    """All changes of what the operator decides about skills, each written down with its act.

    The row of a skill decides: a folder that no row names is not there, whatever became of the process that
    made it. ``fetcher`` gets what is to be installed.
    """

    def __init__(
        self,
        *,
        database: Database,
        skills: Skills,
        installed: InstalledSkills,
        fetcher: Fetcher,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._skills = skills
        self._installed = installed
        #: How the skills stand that are changed here.
        self.standings = SkillStandings(skills=skills, installed=installed)
        self._fetcher = fetcher
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None:
        """Let hold what was decided earlier, and clear away what a crash left of an installation."""
        async with self._changing():
            pass

    async def install(self, source: str, *, path: str | None = None, act: Act) -> Decision:
        """Fetch a skill and put it in quarantine. Raises ``SkillRefused`` or ``SkillConflict``."""
        archive, origin = await self.fetch(source, path=path)
        return await self.take_in(archive, origin=origin, path=path, act=act)

    async def fetch(self, source: str, *, path: str | None = None) -> tuple[bytes, str]:
        """The archive of a source, and the source as it may be written again. Raises ``SkillRefused``."""
        try:
            found = read_source(source, local=self._fetcher.local)
            return await self._fetcher.fetch(found, path=path), str(found)
        except SkillInvalid as error:
            raise SkillRefused(str(error)) from error

    async def take_in(self, archive: bytes, *, origin: str, path: str | None = None, act: Act) -> Decision:
        """Put the skill of an archive in quarantine. Raises ``SkillRefused`` or ``SkillConflict``."""
        async with self._changing():
            staged = await self._staged(archive, path)
            slug = staged.skill.slug
            self._check_free(slug)
            decision = Decision(
                slug=slug,
                origin=origin,
                subfolder=path,
                folder=staged.folder,
                digest=staged.skill.digest,
                state="quarantine",
                installed_at=self._clock(),
            )
            return await self._put(decision, act=act, action="skill.install", origin=origin)

    async def update(self, slug: str, *, act: Act) -> Decision:
        """Fetch an installed skill again from where it came from.

        Where its files are others by now, they are put in quarantine, and what was approved goes on until
        they are approved. Raises ``NotFound``, ``SkillConflict`` or ``SkillRefused``.
        """
        decision = self._installed_one(slug)
        if decision.origin is None or decision.origin == UPLOAD:
            raise SkillConflict(f"{slug} was uploaded; upload its newer version with `torana skills update`.")
        archive, _ = await self.fetch(decision.origin, path=decision.subfolder)
        return await self.renew(slug, archive, act=act)

    async def renew(self, slug: str, archive: bytes, *, act: Act) -> Decision:
        """Put another version of an installed skill in quarantine, from an archive; as ``update`` otherwise.

        Where it is the one that the decision is about, one that waits is withdrawn.
        """
        async with self._changing():
            decision = self._installed_one(slug)
            staged = await self._staged(archive, decision.subfolder)
            if staged.skill.slug != slug:
                raise SkillRefused(
                    f"That is the skill {staged.skill.slug!r}, not {slug!r}; install it by itself."
                )
            new = staged.skill.digest
            if new == decision.digest and decision.next_digest is not None:
                withdrawn, decision = (
                    decision.next_digest,
                    replace(decision, next_folder=None, next_digest=None),
                )
                return await self._put(decision, act=act, action="skill.update", withdrawn=withdrawn)
            if new in (decision.digest, decision.next_digest):
                return decision
            if decision.state == "quarantine":
                decision = replace(decision, folder=staged.folder, digest=new)
            else:
                decision = replace(decision, next_folder=staged.folder, next_digest=new)
            return await self._put(decision, act=act, action="skill.update", newer=new)

    async def approve(self, slug: str, *, digest: str, grant: bool = True, act: Act) -> Decision:
        """Let a skill be loaded, and its scripts be run with what it wants where ``grant`` says so.

        ``digest`` is that of the files that were looked at; it may be that of the newer version, which takes
        the older one's place. Raises ``NotFound``, ``SkillConflict`` for a core skill, ``SkillRefused`` for a
        folder that is broken, and ``SkillChanged`` where the files are others.
        """
        async with self._changing():
            skill, newer = await asyncio.to_thread(self._version, slug, digest)
            decision = self._installed.decision(slug) or self._by_hand(skill)
            if newer:
                decision = replace(decision, folder=decision.next_folder, next_folder=None, next_digest=None)
            granted = written(skill.needs) if grant else None
            decision = replace(decision, state="active", digest=digest, granted=granted)
            return await self._decide(decision, act=act, action="skill.approve", scripts=grant)

    async def disable(self, slug: str, *, act: Act) -> Decision:
        """Let a skill not be loaded any more. Raises ``NotFound``, or ``SkillConflict`` for one that is not."""
        async with self._changing():
            decision = self._installed.decision(slug)
            if decision is None:
                decision = self._by_hand(await asyncio.to_thread(self._only_version, slug))
            elif decision.state != "active":
                raise SkillConflict(f"{slug} is not active: its state is {decision.state}.")
            return await self._decide(replace(decision, state="disabled"), act=act, action="skill.disable")

    async def enable(self, slug: str, *, act: Act) -> Decision:
        """Load a skill again that was disabled, as it was approved.

        Raises ``NotFound``, ``SkillConflict`` for one that is not disabled, and ``SkillChanged`` for an
        installed one whose files are others by now.
        """
        async with self._changing():
            decision = self._installed.decision(slug)
            if decision is not None and decision.folder is not None:
                await self._check_unchanged(decision)
            if decision is None or decision.state != "disabled":
                self._own_versions(slug)
                state = decision.state if decision else "active"
                raise SkillConflict(f"{slug} is not disabled: its state is {state}.")
            return await self._decide(replace(decision, state="active"), act=act, action="skill.enable")

    async def remove(self, slug: str, *, act: Act) -> None:
        """Delete an installed skill. Raises ``NotFound``, or ``SkillConflict`` for any other."""
        async with self._changing():
            self._installed_one(slug)
            await self._database.run(partial(rows.remove, slug=slug, act=act))

    async def _decide(self, decision: Decision, *, act: Act, action: str, **detail: Any) -> Decision:
        decided = replace(decision, decided_by=act.principal, decided_at=self._clock())
        return await self._put(decided, act=act, action=action, **detail)

    async def _put(self, decision: Decision, *, act: Act, action: str, **detail: Any) -> Decision:
        await self._database.run(partial(rows.put, decision=decision, act=act, action=action, **detail))
        return decision

    @asynccontextmanager
    async def _changing(self) -> AsyncGenerator[None]:
        """A change that no other one disturbs; behind it all is as the rows say, whatever became of it.

        A cancellation waits for that.
        """
        async with self._one_at_a_time:
            try:
                yield
            finally:
                await finished(asyncio.create_task(self._settle()))

    async def _settle(self) -> None:
        decided = await self._database.run(rows.listed)
        self._installed.decide(decided)
        keep = {folder for decision in decided.values() for folder in decision.folders}
        await to_its_end(partial(self._clear, keep))

    def _clear(self, keep: set[str]) -> None:
        self._skills.refresh()
        sweep(self._installed.root, keep=keep)

    async def _staged(self, archive: bytes, path: str | None) -> Staged:
        try:
            return await to_its_end(partial(stage, archive, root=self._installed.root, path=path))
        except SkillInvalid as error:
            raise SkillRefused(str(error)) from error

    def _check_free(self, slug: str) -> None:
        if self._installed.decision(slug) is not None or self._skills.by_hand(slug) is not None:
            raise SkillConflict(f"There is a skill {slug} already; update it, or remove it first.")
        if sum(decision.folder is not None for decision in self._installed.decisions()) >= INSTALLED_LIMIT:
            raise SkillConflict(f"There are {INSTALLED_LIMIT} installed skills already; remove some first.")

    async def _check_unchanged(self, decision: Decision) -> None:
        try:
            await asyncio.to_thread(self._version, decision.slug, decision.digest)
        except SkillChanged:
            raise SkillChanged(f"{decision.slug}: {CHANGED}") from None

    def _installed_one(self, slug: str) -> Decision:
        decision = self._installed.decision(slug)
        if decision is not None and decision.folder is not None:
            return decision
        if self._skills.by_hand(slug) is not None:
            raise SkillConflict(
                f"{slug} was placed by hand; change its folder where it is, or delete it there."
            )
        self._own_versions(slug)  # tells of a core skill
        raise self.not_there(slug)

    def _version(self, slug: str, digest: str) -> tuple[Skill, bool]:
        """The version of a skill whose files have this digest now, and whether it is the newer one."""
        faults: list[str] = []
        for path, newer in self._own_versions(slug):
            try:
                skill = parse_skill(path, source="user")
            except SkillInvalid as error:
                faults.append(str(error))
            else:
                if skill.digest == digest:
                    return skill, newer
        if faults:
            raise SkillRefused(f"{slug} cannot be loaded: {faults[0]}")
        raise SkillChanged

    def _only_version(self, slug: str) -> Skill:
        (path, _), *_ = self._own_versions(slug)
        try:
            return parse_skill(path, source="user")
        except SkillInvalid as error:
            raise SkillRefused(f"{slug} cannot be loaded: {error}") from error

    def _own_versions(self, slug: str) -> list[tuple[Path, bool]]:
        versions = list(self.standings.versions(slug))
        if not versions:
            raise self.not_there(slug)
        if versions[0][0].parent == CORE_DIR:
            raise SkillConflict(f"{slug} is part of the package; a skill of yours may take its place.")
        return versions

    @staticmethod
    def not_there(slug: str) -> NotFound:
        """The fault of a skill that nobody knows."""
        return NotFound(f"there is no skill {slug!r}; `torana skills list` names those there are")

    def _by_hand(self, skill: Skill) -> Decision:
        return Decision(slug=skill.slug, digest=skill.digest, state="active", installed_at=self._clock())
