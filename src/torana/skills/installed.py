"""The skills that were installed, as far as the operator approved them, and what was granted to which."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from torana.skills.faults import SkillInvalid
from torana.skills.folder import is_hidden
from torana.skills.needs import Needs
from torana.skills.shelf import Item, Shelf
from torana.skills.skill import BrokenSkill, Skill, parse_skill
from torana.store.skills import Decision

#: The fault of an installed skill whose files are others than those that were approved.
CHANGED = (
    "Its files changed after they were approved; look at them with `torana skills show`, then approve them "
    "again with `torana skills approve`, or remove the skill."
)


class InstalledSkills:
    """The installed skills that are to be loaded, the approvals of all, and who may run what; for any thread.

    ``root`` is the directory that holds the folders that the decisions name. Before somebody said what is
    ``decided`` there are none, and nothing is granted.
    """

    def __init__(self, *, root: Path, decided: Mapping[str, Decision] | None = None) -> None:
        self.root = root
        self._decided = dict(decided or {})
        self._shelf = Shelf(directory=root, source="user")

    def decide(self, decided: Mapping[str, Decision]) -> None:
        """Let these decisions hold from now on, by their slugs."""
        self._decided = dict(decided)

    def decisions(self) -> list[Decision]:
        """All that is decided at this moment."""
        return list(self._decided.values())

    def decision(self, slug: str) -> Decision | None:
        """What is decided about the skill of that slug."""
        return self._decided.get(slug)

    def look(self) -> tuple[Item, ...]:
        """The active ones; one whose files are not those that were approved is broken. Raises nothing."""
        active = [decision for decision in self.decisions() if decision.state == "active" and decision.folder]
        found = self._shelf.read(self.path(decision) for decision in active)
        return tuple(map(_unchanged, found, active))

    def path(self, decision: Decision, *, newer: bool = False) -> Path:
        """The folder of an installed skill, or of its newer version."""
        folder = decision.next_folder if newer else decision.folder
        return self.root / (folder or "") / decision.slug

    def decided(self, skill: Skill) -> Decision | None:
        """What is decided about this very skill, and not about another one of its slug elsewhere."""
        decision = self.decision(skill.slug)
        if decision is None or skill.source == "core":
            return None
        by_hand = not skill.path.is_relative_to(self.root)
        same = decision.folder is None if by_hand else skill.path == self.path(decision)
        return decision if same else None

    def disabled(self) -> frozenset[str]:
        """The slugs of skills that were placed by hand and are not to be loaded."""
        return frozenset(
            decision.slug
            for decision in self.decisions()
            if decision.state == "disabled" and decision.folder is None
        )

    def granted_as_read(self, skill: Skill) -> Needs | None:
        """What the skill's scripts may use as long as its files are still what was read; None is nothing.

        It is what the operator approved, where every file was then as it was read and asked for the same.
        Reads nothing: cheap enough for every message.
        """
        decision = self.decided(skill)
        if decision is None or decision.state != "active" or decision.digest != skill.digest:
            return None
        return skill.needs if decision.granted == written(skill.needs) else None

    def granted(self, skill: Skill) -> Needs | None:
        """What the skill's scripts may use now; None is nothing, and that none of them may be run.

        What was read and what is there have both to be what the operator approved, so that a copy of the
        skill (``copy_skill``) is that as well. Reads the whole folder: call it in a thread, just before a
        script is run.
        """
        needs = self.granted_as_read(skill)
        if needs is None:
            return None
        try:
            same = parse_skill(skill.path, source=skill.source).digest == skill.digest
        except SkillInvalid:
            return None
        # Nothing hidden was unpacked, and no digest covers it: Python runs what lies in `__pycache__`.
        is_ours = skill.path.is_relative_to(self.root)
        return needs if same and not (is_ours and _hides(skill.path)) else None


def not_approved(slug: str) -> str:
    """What is said where a script of the skill is asked for, and none of them may be run."""
    return (
        f"The scripts of the skill {slug!r} are not approved; the operator can do so with "
        f"`torana skills approve {slug}`."
    )


def written(needs: Needs) -> str:
    """What is granted, as it is kept."""
    return json.dumps(asdict(needs), sort_keys=True)


def apart(items: Iterable[Item], disabled: Collection[str]) -> list[Item]:
    """The items but for those of these slugs."""
    return [item for item in items if item.slug not in disabled]


def _hides(folder: Path) -> bool:
    return any(is_hidden(name) for _, folders, names in os.walk(folder) for name in (*folders, *names))


def _unchanged(item: Item, decision: Decision) -> Item:
    if isinstance(item, BrokenSkill) or item.digest == decision.digest:
        return item
    return BrokenSkill(slug=item.slug, source=item.source, path=item.path, fault=CHANGED)
