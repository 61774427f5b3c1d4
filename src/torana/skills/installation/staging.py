"""Unpack an archive into a skill's folder in the directory of installed skills: completely or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from torana.skills.errors import SkillInvalid
from torana.skills.folder import is_hidden
from torana.skills.installation.archive import check_size, unpack
from torana.skills.installation.sources import pack_folder
from torana.skills.skill import Skill, parse_skill, slug_in

#: The maximum number of skills that a message names.
_NAMED = 20

#: The names of folders that ``stage`` gives.
_FOLDER = re.compile(r"[a-z0-9-]{1,100}@[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """An unpacked skill. It is not loaded before a row of the database names ``folder``."""

    #: The name of the directory that contains only the skill's folder.
    folder: str
    skill: Skill
    #: The files of the skill, for ``restore``.
    archive: bytes

    @property
    def stored(self) -> tuple[str, bytes]:
        return self.folder, self.archive


def stage(archive: bytes, *, root: Path, path: str | None) -> Staged:
    """Unpack the skill of an archive into a new directory below ``root``, which is created if it is missing.

    ``path`` chooses one of several skills in the archive; the last parts of its path are enough. The directory
    is moved into place by a single rename, so a crash leaves only a hidden directory, which ``sweep`` deletes.
    Raises ``SkillInvalid``.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=".incoming-"))
    try:
        unpacked, home = scratch / "unpacked", scratch / "home"
        unpacked.mkdir()
        home.mkdir()
        unpack(archive, unpacked)
        found = _choose_folder(unpacked, path)
        slug = slug_in(found, folder="" if found == unpacked else found.name)
        found.rename(home / slug)
        skill = parse_skill(home / slug, source="user")
        packed = pack_folder(home / slug)
        check_size(packed)
        folder = f"{slug}@{secrets.token_hex(8)}"
        home.rename(root / folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Staged(folder=folder, skill=replace(skill, path=root / folder / slug), archive=packed)


def restore(archive: bytes, *, root: Path, folder: str) -> None:
    """Unpack the archive of a staged skill into its folder, completely or not at all. An existing folder stays.

    Raises ``SkillInvalid``, also for the name of a folder that ``stage`` does not give.
    """
    if not _FOLDER.fullmatch(folder):
        raise SkillInvalid(f"{folder!r} is not the name of an installed skill's folder; remove the skill.")
    if (root / folder).exists():
        return
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".incoming-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        unpack(archive, home)
        home.rename(root / folder)


def skill_paths(archive: bytes) -> list[str]:
    """Return the paths of the skills in an archive, for ``stage``. Raises ``SkillInvalid`` if it has none."""
    with tempfile.TemporaryDirectory() as scratch:
        unpacked = Path(scratch)
        unpack(archive, unpacked)
        paths = ["/".join(_parts(folder, unpacked)) or "." for folder in _skill_folders(unpacked)]
    if not paths:
        raise SkillInvalid("The source contains no SKILL.md; name the source of a skill.")
    return paths


def sweep(root: Path, *, keep: Collection[str]) -> None:
    """Delete every directory below ``root`` that is not in ``keep``: removed and incomplete skills."""
    for entry in root.iterdir() if root.exists() else ():
        if entry.name not in keep:
            shutil.rmtree(entry, ignore_errors=True)


def _choose_folder(unpacked: Path, path: str | None) -> Path:
    """Return the folder of the only skill, or of the one that ``path`` names."""
    found = list(_skill_folders(unpacked))
    if path is not None:
        wanted = PurePosixPath(path).parts
        exact = [folder for folder in found if _parts(folder, unpacked) == wanted]
        found = exact or [folder for folder in found if _parts(folder, unpacked)[-len(wanted) :] == wanted]
    if len(found) == 1:
        return found[0]
    if not found:
        where = f"no folder {path!r} with a SKILL.md" if path is not None else "no SKILL.md"
        raise SkillInvalid(f"The source contains {where}; name the source of a skill.")
    names = ["/".join(_parts(folder, unpacked)) or "." for folder in found]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise SkillInvalid(
        f"The source contains {len(names)} skills: {', '.join(names[:_NAMED])}{more}. Choose one with --path, "
        "or install them all with --all."
    )


def _skill_folders(directory: Path) -> Iterator[Path]:
    """Yield the folders with a ``SKILL.md``, sorted; folders inside a skill are not searched."""
    for where, folders, names in os.walk(directory):
        if not {"SKILL.md", "skill.md"}.isdisjoint(names):
            folders.clear()
            yield Path(where)
        folders[:] = sorted(name for name in folders if not is_hidden(name))


def _parts(folder: Path, unpacked: Path) -> tuple[str, ...]:
    return folder.relative_to(unpacked).parts
