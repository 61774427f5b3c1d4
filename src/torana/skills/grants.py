"""The installed skills that the operator approved, and the resources granted to skills."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torana.skills.directory import Item, SkillDirectory
from torana.skills.errors import SkillInvalid
from torana.skills.folder import is_hidden
from torana.skills.format.manifest import Needs
from torana.skills.skill import BrokenSkill, Skill, parse_skill
from torana.store.rows.extensions.skills import SkillDecision

#: The fault of an installed skill whose files differ from the approved ones.
CHANGED = (
    "Its files changed after they were approved; look at them with `torana skills show`, then approve them "
    "again with `torana skills approve`, or remove the skill."
)


class InstalledSkills:
    """The installed skills to load, all decisions, and the granted resources. Thread-safe.

    ``root`` is the directory of the folders that the decisions name. Without ``decided`` there are no installed
    skills and no grants.
    """

    def __init__(self, *, root: Path, decided: Mapping[str, SkillDecision] | None = None) -> None:
        self.root = root
        self._decided = dict(decided or {})
        self._directory = SkillDirectory(directory=root, source="user")

    def decide(self, decided: Mapping[str, SkillDecision]) -> None:
        """Replace all decisions. The keys are slugs."""
        self._decided = dict(decided)

    def decisions(self) -> list[SkillDecision]:
        return list(self._decided.values())

    def decision(self, slug: str) -> SkillDecision | None:
        return self._decided.get(slug)

    def list_skills(self) -> tuple[Item, ...]:
        """Return the active skills. A skill whose files differ from the approved ones is broken."""
        active = [decision for decision in self.decisions() if decision.state == "active" and decision.folder]
        found = self._directory.read(self.path(decision) for decision in active)
        return tuple(map(_unless_changed, found, active))

    def path(self, decision: SkillDecision, *, newer: bool = False) -> Path:
        """Return the folder of an installed skill, or of its newer version."""
        folder = decision.next_folder if newer else decision.folder
        return self.root / (folder or "") / decision.slug

    def decision_of(self, skill: Skill) -> SkillDecision | None:
        """Return the decision about this skill, but not about another skill with the same slug."""
        decision = self.decision(skill.slug)
        if decision is None or skill.source == "core":
            return None
        by_hand = not skill.path.is_relative_to(self.root)
        same = decision.folder is None if by_hand else skill.path == self.path(decision)
        return decision if same else None

    def disabled_slugs(self) -> frozenset[str]:
        """Return the slugs of disabled skills that were placed by hand."""
        return frozenset(
            decision.slug
            for decision in self.decisions()
            if decision.state == "disabled" and decision.folder is None
        )

    def granted_as_read(self, skill: Skill) -> Needs | None:
        """Return the resources that the scripts may use; None means that no script may run.

        This compares the skill as it was read with the approval, and reads nothing: cheap enough for every
        message.
        """
        decision = self.decision_of(skill)
        if decision is None or decision.state != "active" or decision.digest != skill.digest:
            return None
        return skill.needs if decision.granted == serialize_needs(skill.needs) else None

    def granted_needs(self, skill: Skill) -> Needs | None:
        """Return the resources that the scripts may use now; None means that no script may run.

        Both the skill as it was read and its current files must match the approval. ``copy_skill`` verifies the
        same digest, so that a copy contains the approved files. Reads the whole folder: call it in a thread,
        just before a script runs.
        """
        needs = self.granted_as_read(skill)
        if needs is None:
            return None
        try:
            same = parse_skill(skill.path, source=skill.source).digest == skill.digest
        except SkillInvalid:
            return None
        # Archives are unpacked without hidden files, and the digest excludes such files. They must not exist,
        # because Python would run a `__pycache__`.
        is_ours = skill.path.is_relative_to(self.root)
        return needs if same and not (is_ours and _hides(skill.path)) else None


def not_approved_message(slug: str) -> str:
    """Return the error for a script of a skill whose scripts are not approved."""
    return (
        f"The scripts of the skill {slug!r} are not approved; the operator can approve them with "
        f"`torana skills approve {slug}`."
    )


def serialize_needs(needs: Needs) -> str:
    return json.dumps(asdict(needs), sort_keys=True)


def _hides(folder: Path) -> bool:
    return any(is_hidden(name) for _, folders, names in os.walk(folder) for name in (*folders, *names))


def _unless_changed(item: Item, decision: SkillDecision) -> Item:
    if isinstance(item, BrokenSkill) or item.digest == decision.digest:
        return item
    return BrokenSkill(slug=item.slug, source=item.source, path=item.path, fault=CHANGED)
