"""The versions of a skill on the disk: the approved one, and a newer one in quarantine."""

from __future__ import annotations

from pathlib import Path

from torana.errors import NotFound, SkillChanged, SkillConflict, SkillRefused
from torana.skills.errors import SkillInvalid
from torana.skills.library import CORE_DIR
from torana.skills.skill import Skill, parse_skill
from torana.skills.status import SkillStatuses


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
