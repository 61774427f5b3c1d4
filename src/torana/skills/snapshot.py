"""A copy of a skill that is known to be what was read, and approved: what runs is the copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torana.skills.faults import SkillFileError, SkillInvalid
from torana.skills.folder import BYTES_LIMIT, File, digest, find_files
from torana.skills.skill import Skill


def copy_skill(skill: Skill, folder: Path) -> None:
    """Copy the skill's files into the empty ``folder``, links as what they lead to.

    It is the copy whose digest is compared with the skill's, so nothing can change between the look and the
    use. Raises ``SkillFileError`` where they differ, or the skill's folder cannot be read any more.
    """
    try:
        copied = [_copy(file, folder) for file in find_files(skill.path)]
        found = digest(copied)
    except (SkillInvalid, OSError) as error:
        raise SkillFileError(f"The skill {skill.slug!r} cannot be read: {error}") from error
    if found != skill.digest:
        raise SkillFileError(
            f"The files of the skill {skill.slug!r} have changed since it was read; try again in a moment, and "
            "approve it again if need be."
        )


def _copy(file: File, folder: Path) -> File:
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with Path(file.path).open("rb") as source:
        data = source.read(BYTES_LIMIT + 1)
    target.write_bytes(data)
    return replace(file, path=str(target), size=len(data))
