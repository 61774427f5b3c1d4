"""The skill folders of one directory. Only changed folders are read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torana.skills.errors import SkillInvalid
from torana.skills.folder import SkillFile, find_files, is_hidden
from torana.skills.skill import BrokenSkill, Skill, Source, parse_skill

SKILLS_LIMIT = 500

Item = Skill | BrokenSkill


@dataclass(frozen=True, slots=True)
class _FolderState:
    """The last state of a folder: its files or a fault, and the skill that was read from it."""

    files: tuple[SkillFile, ...] | str
    item: Item


class SkillDirectory:
    """A directory with one folder per skill. It may be missing, and may change at any time."""

    def __init__(self, *, directory: Path, source: Source) -> None:
        self._directory = directory
        self._source: Source = source
        self._states: dict[str, _FolderState] = {}

    def list_skills(self) -> tuple[Item, ...]:
        """Return the skills of the directory, sorted by folder name.

        An unchanged folder returns the same object. A faulty folder is returned as a ``BrokenSkill``. A
        directory that cannot be read is one ``BrokenSkill``. In a directory with more than 500 folders, the
        first 500 are read, and a ``BrokenSkill`` is added. Raises no error.
        """
        try:
            folders = _folders(self._directory)
        except OSError as error:
            return (
                self._broken_skill(
                    self._directory,
                    f"The skills directory cannot be read ({error.strerror}); repair or remove it.",
                ),
            )
        items = self.read(folders[:SKILLS_LIMIT])
        if len(folders) > SKILLS_LIMIT:
            fault = (
                f"The directory holds more than {SKILLS_LIMIT} skills; those after "
                f"{folders[SKILLS_LIMIT - 1].name!r} are not read. Remove some."
            )
            items = (*items, self._broken_skill(self._directory, fault))
        return items

    def read(self, folders: Iterable[Path]) -> tuple[Item, ...]:
        """Return the skills of these folders, in order. An unchanged folder returns the same object."""
        self._states = {str(folder): self._read_folder(folder) for folder in folders}
        return tuple(state.item for state in self._states.values())

    def _read_folder(self, folder: Path) -> _FolderState:
        files = _files_or_fault(folder)
        known = self._states.get(str(folder))
        if known is not None and known.files == files:
            return known
        try:
            return _FolderState(files, parse_skill(folder, source=self._source))
        except SkillInvalid as error:
            return _FolderState(files, self._broken_skill(folder, str(error)))

    def _broken_skill(self, path: Path, fault: str) -> BrokenSkill:
        # JSON cannot encode a name that is not UTF-8.
        slug = path.name.encode("utf-8", "backslashreplace").decode()
        return BrokenSkill(slug=slug, source=self._source, path=path, fault=fault)


def _folders(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if not is_hidden(path.name) and path.is_dir())
    except FileNotFoundError:
        return []


def _files_or_fault(folder: Path) -> tuple[SkillFile, ...] | str:
    try:
        return find_files(folder)
    except SkillInvalid as error:
        return str(error)
