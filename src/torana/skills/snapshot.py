"""Copy a skill and verify the copy, so that the approved files are the ones that run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torana.skills.errors import SkillFileError, SkillInvalid
from torana.skills.folder import BYTES_LIMIT, SkillFile, digest, find_files
from torana.skills.skill import Skill


def copy_skill(skill: Skill, folder: Path) -> None:
    """Copy the skill's files into the empty ``folder``. Links are copied as the files that they refer to.

    The digest of the copy is verified, so later changes of the original have no effect. Raises
    ``SkillFileError`` if it differs, or if the skill's folder cannot be read.
    """
    try:
        copied = [_copy(file, folder) for file in find_files(skill.path)]
        found = digest(copied)
    except (SkillInvalid, OSError) as error:
        raise SkillFileError(f"The skill {skill.slug!r} cannot be read: {error}") from error
    if found != skill.digest:
        raise SkillFileError(
            f"The files of the skill {skill.slug!r} have changed since it was read; try again in a moment, and "
            "approve it again if needed."
        )


def _copy(file: SkillFile, folder: Path) -> SkillFile:
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with Path(file.path).open("rb") as source:
        data = source.read(BYTES_LIMIT + 1)
    target.write_bytes(data)
    return replace(file, path=str(target), size=len(data))
