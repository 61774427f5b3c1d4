"""An archive becomes a folder of a skill under the directory of installed skills: whole, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from torana.skills.archive import unpack
from torana.skills.faults import SkillInvalid
from torana.skills.folder import is_hidden
from torana.skills.skill import Skill, parse_skill, slug_in

#: How many skills of an archive a message names.
_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A skill that was unpacked: nothing loads it before a row of the database names ``folder``."""

    #: The name of the directory that holds the skill's own, of no other's.
    folder: str
    skill: Skill


def stage(archive: bytes, *, root: Path, path: str | None) -> Staged:
    """Unpack the skill of an archive into a new directory below ``root``, which is made where it is missing.

    ``path`` names the folder where an archive holds several skills; the end of it will do. The directory gets
    its place by one rename, so a crash leaves nothing there but a hidden one, which ``sweep`` takes away.
    Raises ``SkillInvalid``.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=".incoming-"))
    try:
        unpacked, home = scratch / "unpacked", scratch / "home"
        unpacked.mkdir()
        home.mkdir()
        unpack(archive, unpacked)
        found = _chosen(unpacked, path)
        slug = slug_in(found, folder="" if found == unpacked else found.name)
        found.rename(home / slug)
        skill = parse_skill(home / slug, source="user")
        folder = f"{slug}@{secrets.token_hex(8)}"
        home.rename(root / folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Staged(folder=folder, skill=replace(skill, path=root / folder / slug))


def sweep(root: Path, *, keep: Collection[str]) -> None:
    """Take away every directory below ``root`` that is not to be kept: what was removed, or never finished."""
    for entry in root.iterdir() if root.exists() else ():
        if entry.name not in keep:
            shutil.rmtree(entry, ignore_errors=True)


def _chosen(unpacked: Path, path: str | None) -> Path:
    """The folder of the one skill there is, or of the one that is meant."""
    found = list(_skill_folders(unpacked))
    if path is not None:
        wanted = PurePosixPath(path).parts
        found = [folder for folder in found if _parts(folder, unpacked)[-len(wanted) :] == wanted]
    if len(found) == 1:
        return found[0]
    if not found:
        where = f"no folder {path!r} with a SKILL.md" if path is not None else "no SKILL.md"
        raise SkillInvalid(f"There is {where} in it; name the source of a skill.")
    names = ["/".join(_parts(folder, unpacked)) or "." for folder in found]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise SkillInvalid(
        f"There are {len(names)} skills in it: {', '.join(names[:_NAMED])}{more}. Choose one with --path."
    )


def _skill_folders(directory: Path) -> Iterator[Path]:
    """The folders with a ``SKILL.md``, sorted; a skill's own folders are not searched for others."""
    for where, folders, names in os.walk(directory):
        if not {"SKILL.md", "skill.md"}.isdisjoint(names):
            folders.clear()
            yield Path(where)
        folders[:] = sorted(name for name in folders if not is_hidden(name))


def _parts(folder: Path, unpacked: Path) -> tuple[str, ...]:
    return folder.relative_to(unpacked).parts
