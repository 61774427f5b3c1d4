"""The status of every skill: loaded, waiting for approval, disabled, changed or broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torana.skills.directory import Item, SkillDirectory
from torana.skills.errors import SkillInvalid
from torana.skills.grants import CHANGED, InstalledSkills, serialize_needs
from torana.skills.library import CORE_DIR, Skills
from torana.skills.report import SkillReport, report_on
from torana.skills.skill import BrokenSkill, Skill, Source, is_slug, parse_skill
from torana.store.rows.extensions.skills import SkillDecision

StandingState = Literal["active", "quarantine", "disabled", "changed", "broken"]

_NOT_GRANTED_ANY_MORE = (
    "Its files changed after its scripts were approved, so they are not run; look at them with "
    "`torana skills show`, then approve it again."
)
#: The number of reports that are kept.
_REPORTS = 50
_SHADOWED = "A skill placed by hand has the same name and is loaded instead; remove one of them."


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillStatus:
    """A skill in any state. Fields that a broken folder does not provide are empty."""

    slug: str
    source: Source
    state: StandingState
    #: The problem and its cure.
    fault: str | None
    title: str = ""
    description: str = ""
    version: str | None = None
    digest: str | None = None
    #: False for core skills and for skills placed by hand.
    installed: bool = False
    origin: str | None = None
    #: True if its scripts may run, with all of its needs.
    granted: bool = False
    #: True if it has scripts.
    scripts: bool = False
    #: The digest of a newer version in quarantine.
    newer: str | None = None
    #: Parts that are not used in full.
    warnings: tuple[str, ...] = ()

    @property
    def has_unapproved_scripts(self) -> bool:
        """Return whether the skill is loaded without its scripts because they are not approved."""
        return self.state == "active" and self.scripts and not self.granted and self.fault is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    skill: Skill
    report: SkillReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillDetails:
    """A skill with everything to review before its approval. Both versions are None if the folder is broken."""

    status: SkillStatus
    current: Look | None
    newer: Look | None


class SkillStatuses:
    """Lists skills and their details. It reads folders: call it in a thread."""

    def __init__(self, *, skills: Skills, installed: InstalledSkills) -> None:
        self._skills = skills
        self._installed = installed
        self._core = frozenset(path.name for path in CORE_DIR.iterdir())
        #: The skills that are not loaded. Only changed folders are read again.
        self._waiting = SkillDirectory(directory=installed.root, source="user")
        #: Reports by the digest of the files and the source, the oldest first. A report takes seconds.
        self._reports: dict[tuple[str, Source], SkillReport] = {}

    def list_statuses(self) -> list[SkillStatus]:
        """Return the statuses of all skills, sorted by source and slug."""
        return sorted(self._all(), key=lambda one: (one.source, one.slug, one.state))

    def get(self, slug: str) -> SkillDetails | None:
        """Return a skill with its newer version, or None for an unknown slug."""
        status = next((one for one in self.list_statuses() if one.slug == slug), None)
        if status is None:
            return None
        current, newer = None, None
        for path, is_newer in self.versions(slug):
            if is_newer:
                newer = self._inspect(path)
            else:
                current = self._inspect(path)
        return SkillDetails(status=status, current=current, newer=newer)

    def versions(self, slug: str) -> Iterator[tuple[Path, bool]]:
        """Yield the folders of a skill, each with whether it is a newer version in quarantine."""
        decision = self._installed.decision(slug)
        if decision is not None and decision.folder is not None:
            if decision.next_folder is not None:
                yield self._installed.path(decision, newer=True), True
            yield self._installed.path(decision), False
        elif is_slug(slug):
            path = self._skills.by_hand(slug) or CORE_DIR / slug
            if path.is_dir():
                yield path, False

    def _inspect(self, path: Path) -> Look | None:
        source: Source = "core" if path.parent == CORE_DIR else "user"
        try:
            skill = parse_skill(path, source=source)
            return Look(skill=skill, report=self._report_on(skill))
        except SkillInvalid:
            return None

    def _report_on(self, skill: Skill) -> SkillReport:
        key = skill.digest, skill.source
        report = self._reports.pop(key, None)
        if report is None:
            report = report_on(skill, core=self._core if skill.source == "user" else ())
        self._reports[key] = report
        while len(self._reports) > _REPORTS:
            self._reports.pop(next(iter(self._reports)), None)
        return report

    def _all(self) -> Iterator[SkillStatus]:
        catalogue = self._skills.catalogue()
        listed: set[str] = set()
        for skill in catalogue.loaded:
            decision = self._installed.decision_of(skill)
            listed.add(decision.slug if decision else "")
            changed = decision is not None and decision.granted is not None and not _holds(decision, skill)
            fault = _NOT_GRANTED_ANY_MORE if changed else None
            yield _build_status(skill, decision, state="active", fault=fault)
        for item in catalogue.broken:
            decision = self._installed.decision(item.slug)
            ours = decision is not None and item.path == self._installed.path(decision)
            listed.add(item.slug if ours else "")
            yield _broken_status(item, decision if ours else None)
        # An active skill that is not loaded is either shadowed, or was placed by hand and deleted.
        waiting = [
            decision
            for decision in self._installed.decisions()
            if decision.slug not in listed and (decision.state != "active" or decision.folder is not None)
        ]
        items = self._waiting.read(map(self._path, waiting))
        yield from map(_waiting_status, items, waiting)

    def _path(self, decision: SkillDecision) -> Path:
        by_hand = self._skills.by_hand(decision.slug) if decision.folder is None else None
        return by_hand or self._installed.path(decision)


def _waiting_status(item: Item, decision: SkillDecision) -> SkillStatus:
    """Return the status of a skill that waits for approval or is disabled."""
    if isinstance(item, BrokenSkill):
        return _broken_status(item, decision)
    if decision.folder is not None and item.digest != decision.digest:
        return _build_status(item, decision, state="changed", fault=CHANGED)
    state: StandingState = "quarantine" if decision.state == "quarantine" else "disabled"
    return _build_status(item, decision, state=state, fault=_SHADOWED if decision.state == "active" else None)


def _holds(decision: SkillDecision, skill: Skill) -> bool:
    return decision.digest == skill.digest and decision.granted == serialize_needs(skill.needs)


def _build_status(
    skill: Skill, decision: SkillDecision | None, *, state: StandingState, fault: str | None
) -> SkillStatus:
    return SkillStatus(
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
        warnings=skill.warnings,
    )


def _broken_status(item: BrokenSkill, decision: SkillDecision | None) -> SkillStatus:
    return SkillStatus(
        slug=item.slug,
        source=item.source,
        state="changed" if item.fault == CHANGED else "broken",
        fault=item.fault,
        installed=decision is not None,
        origin=decision and decision.origin,
        newer=decision and decision.next_digest,
    )
