"""The skill folders of one directory, read again only where something changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torana.skills.faults import SkillInvalid
from torana.skills.folder import File, find_files, is_hidden
from torana.skills.skill import BrokenSkill, Skill, Source, parse_skill

SKILLS_LIMIT = 500

Item = Skill | BrokenSkill


@dataclass(frozen=True, slots=True)
class _Seen:
    """A folder as it was found: its files, or the fault in finding them, and what was read from it."""

    files: tuple[File, ...] | str
    item: Item


class Shelf:
    """A directory with a folder per skill. It may be missing, and it may change at any time."""

    def __init__(self, *, directory: Path, source: Source) -> None:
        self._directory = directory
        self._source: Source = source
        self._seen: dict[str, _Seen] = {}

    def look(self) -> tuple[Item, ...]:
        """What is on the shelf now, sorted by folder name; an untouched folder gives the same object again.

        A folder with a fault stands there as a ``BrokenSkill``, as does the directory itself where it cannot
        be read or holds more than 500 folders (those beyond are not read). Raises nothing.
        """
        try:
            folders = _folders(self._directory)
        except OSError as error:
            return (
                self._broken(
                    self._directory,
                    f"The skills directory cannot be read ({error.strerror}); mend or remove it.",
                ),
            )
        items = self.read(folders[:SKILLS_LIMIT])
        if len(folders) > SKILLS_LIMIT:
            fault = (
                f"The directory holds more than {SKILLS_LIMIT} skills; those after "
                f"{folders[SKILLS_LIMIT - 1].name!r} are not read. Remove some."
            )
            items = (*items, self._broken(self._directory, fault))
        return items

    def read(self, folders: Iterable[Path]) -> tuple[Item, ...]:
        """What is in these folders, in their order; an untouched one gives the same object again."""
        self._seen = {str(folder): self._read(folder) for folder in folders}
        return tuple(seen.item for seen in self._seen.values())

    def _read(self, folder: Path) -> _Seen:
        files = _files_or_fault(folder)
        known = self._seen.get(str(folder))
        if known is not None and known.files == files:
            return known
        try:
            return _Seen(files, parse_skill(folder, source=self._source))
        except SkillInvalid as error:
            return _Seen(files, self._broken(folder, str(error)))

    def _broken(self, path: Path, fault: str) -> BrokenSkill:
        # A name that is not UTF-8 could not be put into JSON.
        slug = path.name.encode("utf-8", "backslashreplace").decode()
        return BrokenSkill(slug=slug, source=self._source, path=path, fault=fault)


def _folders(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if not is_hidden(path.name) and path.is_dir())
    except FileNotFoundError:
        return []


def _files_or_fault(folder: Path) -> tuple[File, ...] | str:
    try:
        return find_files(folder)
    except SkillInvalid as error:
        return str(error)
