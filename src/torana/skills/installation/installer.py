"""Install, approve, disable, enable, update and remove skills, one change at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from torana.aio import run_uncancellable
from torana.errors import NotFound, SkillChanged, SkillConflict, SkillRefused
from torana.messages import utc_now
from torana.skills.errors import SkillInvalid
from torana.skills.grants import CHANGED, InstalledSkills, serialize_needs
from torana.skills.installation.decisions import StoredDecisions
from torana.skills.installation.fetching import Fetcher
from torana.skills.installation.sources import read_source
from torana.skills.installation.staging import Staged, stage
from torana.skills.library import CORE_DIR, Skills
from torana.skills.skill import Skill, parse_skill
from torana.skills.status import SkillStatuses
from torana.store.engine.database import Database
from torana.store.rows.audit import Act
from torana.store.rows.extensions.skills import SkillDecision

#: The origin of an uploaded archive.
UPLOAD = "upload"
INSTALLED_LIMIT = 500
#: The maximum size in bytes of the files of all skills that wait for approval.
QUARANTINE_LIMIT = 500 * 1024 * 1024


class SkillInstaller:
    """Makes all changes to the operator's decisions about skills, and records them in the audit record.

    ``fetcher`` fetches sources. A change raises ``SkillConflict`` if another replica changes the same skill at
    the same time.
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
        self._skills = skills
        self._installed = installed
        #: The statuses of the skills.
        self.statuses = SkillStatuses(skills=skills, installed=installed)
        self._versions = SkillVersions(statuses=self.statuses)
        self._fetcher = fetcher
        self._clock = clock
        #: Stores the decisions; start it before a change.
        self.decisions = StoredDecisions(database=database, skills=skills, installed=installed)

    async def install(self, source: str, *, path: str | None = None, act: Act) -> SkillDecision:
        """Fetch a skill and put it in quarantine. Raises ``SkillRefused`` or ``SkillConflict``."""
        archive, origin = await self.fetch(source, path=path)
        return await self.install_archive(archive, origin=origin, path=path, act=act)

    async def fetch(self, source: str, *, path: str | None = None) -> tuple[bytes, str]:
        """Return the archive of a source, and the source in its canonical form. Raises ``SkillRefused``."""
        try:
            found = read_source(source, local=self._fetcher.local)
            return await self._fetcher.fetch(found, path=path), str(found)
        except SkillInvalid as error:
            raise SkillRefused(str(error)) from error

    async def install_archive(
        self, archive: bytes, *, origin: str, path: str | None = None, act: Act
    ) -> SkillDecision:
        """Put the skill of an archive in quarantine. Raises ``SkillRefused`` or ``SkillConflict``."""
        async with self.decisions.changing():
            staged = await self._stage(archive, path)
            slug = staged.skill.slug
            self._check_free(slug)
            decision = SkillDecision(
                slug=slug,
                origin=origin,
                subfolder=path,
                folder=staged.folder,
                digest=staged.skill.digest,
                state="quarantine",
                installed_at=self._clock(),
            )
            await self._check_quarantine(decision)
            return await self.decisions.put(
                decision, act=act, action="skill.install", archive=staged.stored, origin=origin
            )

    async def update(self, slug: str, *, act: Act) -> SkillDecision:
        """Fetch an installed skill again from its source.

        If its files changed, they are put in quarantine, and the approved version stays active until they are
        approved. Raises ``NotFound``, ``SkillConflict`` or ``SkillRefused``.
        """
        decision = self._installed_one(slug)
        if decision.origin is None or decision.origin == UPLOAD:
            raise SkillConflict(f"{slug} was uploaded; upload its newer version with `torana skills update`.")
        archive, _ = await self.fetch(decision.origin, path=decision.subfolder)
        return await self.update_from_archive(slug, archive, act=act)

    async def update_from_archive(self, slug: str, archive: bytes, *, act: Act) -> SkillDecision:
        """Put another version of an installed skill in quarantine, from an archive. Otherwise like ``update``.

        If the archive contains the current version, a newer version in quarantine is withdrawn.
        """
        async with self.decisions.changing():
            decision = self._installed_one(slug)
            staged = await self._stage(archive, decision.subfolder)
            if staged.skill.slug != slug:
                raise SkillRefused(
                    f"The archive contains the skill {staged.skill.slug!r}, not "
                    f"{slug!r}; install it separately."
                )
            new = staged.skill.digest
            if new == decision.digest and decision.next_digest is not None:
                withdrawn, decision = (
                    decision.next_digest,
                    replace(decision, next_folder=None, next_digest=None),
                )
                return await self.decisions.put(decision, act=act, action="skill.update", withdrawn=withdrawn)
            if new in (decision.digest, decision.next_digest):
                return decision
            if decision.state == "quarantine":
                decision = replace(decision, folder=staged.folder, digest=new)
            else:
                decision = replace(decision, next_folder=staged.folder, next_digest=new)
            await self._check_quarantine(decision)
            return await self.decisions.put(
                decision, act=act, action="skill.update", archive=staged.stored, newer=new
            )

    async def approve(self, slug: str, *, digest: str, grant: bool = True, act: Act) -> SkillDecision:
        """Approve a skill, and with ``grant`` its scripts and all of its needs.

        ``digest`` identifies the files that the operator reviewed. It may be the newer version's, which then
        replaces the current one. Raises ``NotFound``, ``SkillConflict`` for a core skill, ``SkillRefused`` for
        a broken folder, and ``SkillChanged`` if no version has these files.
        """
        async with self.decisions.changing():
            skill, newer = await asyncio.to_thread(self._versions.get, slug, digest)
            decision = self._installed.decision(slug) or _placed_by_hand(skill, at=self._clock())
            if newer:
                decision = replace(decision, folder=decision.next_folder, next_folder=None, next_digest=None)
            granted = serialize_needs(skill.needs) if grant else None
            decision = replace(decision, state="active", digest=digest, granted=granted)
            return await self._decide(decision, act=act, action="skill.approve", scripts=grant)

    async def disable(self, slug: str, *, act: Act) -> SkillDecision:
        """Disable a skill. Raises ``NotFound``, or ``SkillConflict`` for a skill that is not active."""
        async with self.decisions.changing():
            decision = self._installed.decision(slug)
            if decision is None:
                decision = _placed_by_hand(await asyncio.to_thread(self._versions.only, slug), at=self._clock())
            elif decision.state != "active":
                raise SkillConflict(f"{slug} is not active: its state is {decision.state}.")
            return await self._decide(replace(decision, state="disabled"), act=act, action="skill.disable")

    async def enable(self, slug: str, *, act: Act) -> SkillDecision:
        """Enable a disabled skill with its earlier approval.

        Raises ``NotFound``, ``SkillConflict`` for a skill that is not disabled, and ``SkillChanged`` for an
        installed skill whose files changed.
        """
        async with self.decisions.changing():
            decision = self._installed.decision(slug)
            if decision is not None and decision.folder is not None:
                await self._check_unchanged(decision)
            if decision is None or decision.state != "disabled":
                self._versions.paths(slug)
                state = decision.state if decision else "active"
                raise SkillConflict(f"{slug} is not disabled: its state is {state}.")
            return await self._decide(replace(decision, state="active"), act=act, action="skill.enable")

    async def remove(self, slug: str, *, act: Act) -> None:
        """Delete an installed skill. Raises ``NotFound``, or ``SkillConflict`` for other skills."""
        async with self.decisions.changing():
            await self.decisions.remove(self._installed_one(slug), act=act)

    async def _decide(self, decision: SkillDecision, *, act: Act, action: str, **detail: Any) -> SkillDecision:
        decided = replace(decision, decided_by=act.principal, decided_at=self._clock())
        return await self.decisions.put(decided, act=act, action=action, **detail)

    async def _stage(self, archive: bytes, path: str | None) -> Staged:
        try:
            return await run_uncancellable(partial(stage, archive, root=self._installed.root, path=path))
        except SkillInvalid as error:
            raise SkillRefused(str(error)) from error

    def _check_free(self, slug: str) -> None:
        if self._installed.decision(slug) is not None or self._skills.by_hand(slug) is not None:
            raise SkillConflict(f"The skill {slug} already exists; update it, or remove it first.")
        if sum(decision.folder is not None for decision in self._installed.decisions()) >= INSTALLED_LIMIT:
            raise SkillConflict(f"{INSTALLED_LIMIT} skills are already installed; remove a skill first.")

    async def _check_quarantine(self, decision: SkillDecision) -> None:
        others = [one for one in self._installed.decisions() if one.slug != decision.slug]
        folders = [one.folder if one.state == "quarantine" else one.next_folder for one in (*others, decision)]
        waiting = [self._installed.root / folder for folder in folders if folder is not None]
        if await asyncio.to_thread(_size_of, waiting) > QUARANTINE_LIMIT:
            raise SkillConflict(
                f"The skills that wait for approval would have more than {QUARANTINE_LIMIT >> 20} MiB; "
                "approve or remove one of them first."
            )

    async def _check_unchanged(self, decision: SkillDecision) -> None:
        try:
            await asyncio.to_thread(self._versions.get, decision.slug, decision.digest)
        except SkillChanged:
            raise SkillChanged(f"{decision.slug}: {CHANGED}") from None

    def _installed_one(self, slug: str) -> SkillDecision:
        decision = self._installed.decision(slug)
        if decision is not None and decision.folder is not None:
            return decision
        if self._skills.by_hand(slug) is not None:
            raise SkillConflict(
                f"{slug} was placed by hand; change its folder where it is, or delete it there."
            )
        self._versions.paths(slug)  # raises for a core skill
        raise unknown_skill(slug)


def _size_of(folders: Iterable[Path]) -> int:
    return sum(file.lstat().st_size for folder in folders for file in folder.rglob("*"))


def _placed_by_hand(skill: Skill, *, at: datetime) -> SkillDecision:
    return SkillDecision(slug=skill.slug, digest=skill.digest, state="active", installed_at=at)


class SkillVersions:
    """Reads the versions of the operator's own skills."""

    def __init__(self, *, statuses: SkillStatuses) -> None:
        self._statuses = statuses

    def get(self, slug: str, digest: str) -> tuple[Skill, bool]:
        """Return the version whose files have this digest, and whether it is the newer one.

        Raises ``SkillChanged`` if no version has it, and the errors of ``paths``.
        """
        faults: list[str] = []
        for path, newer in self.paths(slug):
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

    def only(self, slug: str) -> Skill:
        """Return the first version. Raises ``SkillRefused`` if it cannot be loaded, and ``paths``' errors."""
        (path, _), *_ = self.paths(slug)
        try:
            return parse_skill(path, source="user")
        except SkillInvalid as error:
            raise SkillRefused(f"{slug} cannot be loaded: {error}") from error

    def paths(self, slug: str) -> list[tuple[Path, bool]]:
        """Return the folders of a user's skill, and whether each is the newer version.

        Raises ``NotFound``, or ``SkillConflict`` for a core skill.
        """
        versions = list(self._statuses.versions(slug))
        if not versions:
            raise unknown_skill(slug)
        if versions[0][0].parent == CORE_DIR:
            raise SkillConflict(f"{slug} is part of the package; your own skill with this name can replace it.")
        return versions


def unknown_skill(slug: str) -> NotFound:
    return NotFound(f"there is no skill {slug!r}; `torana skills list` lists all skills")
