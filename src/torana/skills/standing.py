"""How every skill stands: loaded, waiting for approval, switched off, changed or broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torana.skills.faults import SkillInvalid
from torana.skills.installed import CHANGED, InstalledSkills, written
from torana.skills.library import CORE_DIR, Skills
from torana.skills.report import Report, report_on
from torana.skills.skill import BrokenSkill, Skill, Source, is_slug, parse_skill
from torana.store.skills import Decision

StandingState = Literal["active", "quarantine", "disabled", "changed", "broken"]

_NOT_GRANTED_ANY_MORE = (
    "Its files changed after its scripts were approved, so they are not run; look at them with "
    "`torana skills show`, then approve it again."
)
_SHADOWED = "A skill that was placed by hand has its name and is loaded instead; remove one of them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A skill, whatever its state. What a broken folder does not tell is empty."""

    slug: str
    source: Source
    state: StandingState
    #: What is wrong, and the cure.
    fault: str | None
    title: str = ""
    description: str = ""
    version: str | None = None
    digest: str | None = None
    #: False for what was placed by hand, and for core skills.
    installed: bool = False
    origin: str | None = None
    #: Whether its scripts may be run, with what it wants.
    granted: bool = False
    #: Whether there are any.
    scripts: bool = False
    #: The digest of a newer version, in quarantine.
    newer: str | None = None

    @property
    def unapproved(self) -> bool:
        """Whether it is loaded as instructions alone, though it has scripts: nobody approved them."""
        return self.state == "active" and self.scripts and not self.granted and self.fault is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A version of a skill as a reader is shown it."""

    skill: Skill
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A skill with all that is to be read before it is approved; without a look where its folder is broken."""

    standing: Standing
    current: Look | None
    newer: Look | None


class SkillStandings:
    """What is listed and shown. It reads folders: call it in a thread."""

    def __init__(self, *, skills: Skills, installed: InstalledSkills) -> None:
        self._skills = skills
        self._installed = installed
        self._core = frozenset(path.name for path in CORE_DIR.iterdir())

    def listed(self) -> list[Standing]:
        """All skills, by source and slug."""
        return sorted(self._all(), key=lambda one: (one.source, one.slug, one.state))

    def shown(self, slug: str) -> Shown | None:
        """A skill and its newer version; None where there is none of that slug."""
        standing = next((one for one in self.listed() if one.slug == slug), None)
        if standing is None:
            return None
        current, newer = None, None
        for path, is_newer in self.versions(slug):
            if is_newer:
                newer = self._looked(path)
            else:
                current = self._looked(path)
        return Shown(standing=standing, current=current, newer=newer)

    def versions(self, slug: str) -> Iterator[tuple[Path, bool]]:
        """The folders of a skill, each with whether it is a newer version that waits."""
        decision = self._installed.decision(slug)
        if decision is not None and decision.folder is not None:
            if decision.next_folder is not None:
                yield self._installed.path(decision, newer=True), True
            yield self._installed.path(decision), False
        elif is_slug(slug):
            path = self._skills.by_hand(slug) or CORE_DIR / slug
            if path.is_dir():
                yield path, False

    def _looked(self, path: Path) -> Look | None:
        source: Source = "core" if path.parent == CORE_DIR else "user"
        try:
            skill = parse_skill(path, source=source)
            return Look(skill=skill, report=report_on(skill, core=self._core if source == "user" else ()))
        except SkillInvalid:
            return None

    def _all(self) -> Iterator[Standing]:
        catalogue = self._skills.catalogue()
        told: set[str] = set()
        for skill in catalogue.loaded:
            decision = self._installed.decided(skill)
            told.add(decision.slug if decision else "")
            yield _active(skill, decision)
        for item in catalogue.broken:
            decision = self._installed.decision(item.slug)
            ours = decision is not None and item.path == self._installed.path(decision)
            told.add(item.slug if ours else "")
            yield _broken(item, decision if ours else None)
        for decision in self._installed.decisions():
            # An active one that is not loaded is either shadowed, or was placed by hand and is gone.
            if decision.slug not in told and (decision.state != "active" or decision.folder is not None):
                yield self._waiting(decision)

    def _waiting(self, decision: Decision) -> Standing:
        path = self._skills.by_hand(decision.slug) if decision.folder is None else None
        path = path or self._installed.path(decision)
        state: StandingState = "quarantine" if decision.state == "quarantine" else "disabled"
        try:
            skill = parse_skill(path, source="user")
        except SkillInvalid as error:
            item = BrokenSkill(slug=decision.slug, source="user", path=path, fault=str(error))
            return _broken(item, decision)
        if decision.folder is not None and skill.digest != decision.digest:
            return _told(skill, decision, state="changed", fault=CHANGED)
        return _told(skill, decision, state=state, fault=_SHADOWED if decision.state == "active" else None)


def _active(skill: Skill, decision: Decision | None) -> Standing:
    changed = decision is not None and decision.granted is not None and not _holds(decision, skill)
    return _told(skill, decision, state="active", fault=_NOT_GRANTED_ANY_MORE if changed else None)


def _holds(decision: Decision, skill: Skill) -> bool:
    """Whether the grant is still about what the skill is and wants."""
    return decision.digest == skill.digest and decision.granted == written(skill.needs)


def _told(skill: Skill, decision: Decision | None, *, state: StandingState, fault: str | None) -> Standing:
    return Standing(
        slug=skill.slug,
        source=skill.source,
        state=state,
        fault=fault,
        title=skill.title,
        description=skill.description,
        version=skill.version,
        digest=skill.digest,
        installed=decision is not None and decision.folder is not None,
        origin=decision and decision.origin,
        granted=state == "active" and decision is not None and _holds(decision, skill),
        scripts=bool(skill.needs.scripts),
        newer=decision and decision.next_digest,
    )


def _broken(item: BrokenSkill, decision: Decision | None) -> Standing:
    return Standing(
        slug=item.slug,
        source=item.source,
        state="changed" if item.fault == CHANGED else "broken",
        fault=item.fault,
        installed=decision is not None,
        origin=decision and decision.origin,
        newer=decision and decision.next_digest,
    )
