"""All skills: those of the package, and the user's, which may change while the gateway runs.

The user's skills are those that were placed by hand, and those that were installed and approved.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TypedDict

from torana.skills.directory import Item, SkillDirectory
from torana.skills.errors import SkillFileError, SkillInvalid
from torana.skills.folder import SkillFile, find_files, read_text
from torana.skills.grants import InstalledSkills
from torana.skills.skill import BrokenSkill, Skill, Source

#: The directory of the package's skills.
CORE_DIR = Path(__file__).with_name("core")

FILE_BYTES_LIMIT = 64 * 1024
#: Seconds between two scans of the user's directory, and seconds that a caller waits for a scan.
LOOK_INTERVAL = 1.0
PATIENCE = 0.02

logger = logging.getLogger(__name__)


class MissingRequirement(TypedDict):
    """The unmet requirements of a skill. ``"a | b"`` among the bins means that either is enough."""

    env: list[str]
    bins: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The skills at one time. Equal catalogues are the same object, so they can be compared with ``is``."""

    #: Sorted by source, then slug. Each slug occurs once.
    loaded: tuple[Skill, ...]
    #: Sorted by source, then slug.
    broken: tuple[BrokenSkill, ...]
    #: Changes when a skill, one of its files or a fault changes. Opaque, without quotation marks.
    etag: str

    def get(self, slug: str) -> Skill | None:
        """Return the loaded skill with that slug, or None."""
        return next((skill for skill in self.loaded if skill.slug == slug), None)

    def counts(self) -> dict[Source, int]:
        sources = [skill.source for skill in self.loaded]
        return {"core": sources.count("core"), "user": sources.count("user")}


def in_background(work: Callable[[], object]) -> None:
    """Run ``work`` in a thread, and wait for it briefly: a small directory is read within that time."""
    thread = threading.Thread(target=work, name="skills", daemon=True)
    thread.start()
    thread.join(PATIENCE)


class Skills:
    """Core and user skills as one catalogue. Thread-safe.

    A user's skill replaces a core skill with the same slug, and a skill placed by hand replaces an installed
    one; a broken skill replaces none. ``environ`` and ``which`` check requirements; ``monotonic`` returns
    seconds; ``background`` runs a scan of the user's directory.
    """

    def __init__(
        self,
        *,
        core_dir: Path,
        user_dir: Path | None,
        environ: Mapping[str, str],
        installed: InstalledSkills | None = None,
        which: Callable[[str], str | None] = shutil.which,
        monotonic: Callable[[], float] = time.monotonic,
        background: Callable[[Callable[[], object]], None] = in_background,
    ) -> None:
        self._core = _core_directory(core_dir)
        self._user = SkillDirectory(directory=user_dir, source="user") if user_dir else None
        self._user_dir = user_dir
        self._installed = installed
        self._environ = environ
        self._which = which
        self._monotonic = monotonic
        self._background = background
        self._core_items: tuple[Item, ...] | None = None
        self._catalogue: Catalogue | None = None
        self._next_look = 0.0
        # Held during a scan: acquired by the caller, released by the scanning thread.
        self._looking = threading.Lock()

    def catalogue(self) -> Catalogue:
        """Return the skills of the last scan.

        Cheap enough for every message: at most once a second a scan of the user's directory starts in the
        background, and the caller waits for it for at most 20 ms. A change is visible within about a second, in
        a large directory at the first call after the next scan. Only changed folders are read; each new fault
        is logged once. The first call reads everything. Raises nothing.
        """
        known = self._catalogue
        if known is None:
            self._looking.acquire()
            return self._look()
        if self._monotonic() >= self._next_look and self._looking.acquire(blocking=False):
            self._background(self._look)
        return self._catalogue or known

    def refresh(self) -> Catalogue:
        """Scan now, after a scan in progress, and return the result."""
        self._looking.acquire()
        return self._look()

    def by_hand(self, slug: str) -> Path | None:
        """Return the folder of that name that was placed by hand, whether it is loaded or not."""
        folder = self._user_dir / slug if self._user_dir else None
        return folder if folder is not None and folder.is_dir() else None

    def missing(self, skill: Skill) -> MissingRequirement:
        """Return the unmet requirements of a skill. A skill without any is eligible."""
        bins = [name for name in skill.requires_bins if self._which(name) is None]
        if skill.requires_any_bins and not any(self._which(name) for name in skill.requires_any_bins):
            bins.append(" | ".join(skill.requires_any_bins))
        return {"env": [name for name in skill.requires_env if not self._environ.get(name)], "bins": bins}

    def files(self, skill: Skill) -> tuple[str, ...]:
        """Return the paths of the skill's files, relative to its folder, sorted, without hidden files.

        Raises ``SkillFileError`` if the folder is broken or was deleted.
        """
        return tuple(self._find(skill))

    def read_file(self, slug: str, relative_path: str) -> str:
        """Return the text of a file of a loaded skill, at most 64 KiB.

        Only files that ``files`` lists can be read, so no path leads out of the folder. Raises
        ``SkillFileError``.
        """
        skill = self.catalogue().get(slug)
        if skill is None:
            raise SkillFileError(f"There is no skill {slug!r}.{self._nearest(slug)}")
        found = self._find(skill)
        name = PurePosixPath(relative_path).as_posix()
        if name not in found:
            raise SkillFileError(f"The skill {slug!r} has no file {relative_path!r}; it has {_listing(found)}.")
        return read_text(found[name], limit=FILE_BYTES_LIMIT)

    def _look(self) -> Catalogue:
        try:
            self._next_look = self._monotonic() + LOOK_INTERVAL
            self._catalogue = self._refresh(self._catalogue)
            return self._catalogue
        finally:
            self._looking.release()

    def _refresh(self, known: Catalogue | None) -> Catalogue:
        if self._core_items is None:
            self._core_items = self._core.list_skills()
        fresh = self._compose([*self._core_items, *self._users()])
        if known is not None and fresh == known:
            return known
        reported = known.broken if known else ()
        _log_faults(fault for fault in fresh.broken if fault not in reported)
        return fresh

    def _users(self) -> list[Item]:
        by_hand = self._user.list_skills() if self._user else ()
        if self._installed is None:
            return [*by_hand]
        disabled = self._installed.disabled_slugs()
        return [*self._installed.list_skills(), *(item for item in by_hand if item.slug not in disabled)]

    def _compose(self, items: Iterable[Item]) -> Catalogue:
        by_slug = {item.slug: item for item in items if isinstance(item, Skill)}
        loaded = tuple(sorted(by_slug.values(), key=_place))
        broken = tuple(sorted((item for item in items if isinstance(item, BrokenSkill)), key=_place))
        return Catalogue(loaded=loaded, broken=broken, etag=self._etag(loaded, broken))

    def _etag(self, loaded: Iterable[Skill], broken: Iterable[BrokenSkill]) -> str:
        parts = [
            *([skill.source, skill.slug, skill.digest, self.missing(skill)] for skill in loaded),
            *([item.source, item.slug, item.fault] for item in broken),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _find(self, skill: Skill) -> dict[str, SkillFile]:
        try:
            return {file.name: file for file in find_files(skill.path)}
        except SkillInvalid as error:
            raise SkillFileError(f"The skill {skill.slug!r} cannot be read: {error}") from error

    def _nearest(self, slug: str) -> str:
        near = get_close_matches(slug, [skill.slug for skill in self.catalogue().loaded], n=1)
        return f" The nearest is {near[0]!r}." if near else ""


@lru_cache(maxsize=4)
def _core_directory(path: Path) -> SkillDirectory:
    """Return the core skills, which all catalogues of a process share: each file is parsed once."""
    return SkillDirectory(directory=path, source="core")


def _place(item: Item) -> tuple[str, str]:
    return item.source, item.slug


def _listing(names: Iterable[str], *, limit: int = 20) -> str:
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _log_faults(faults: Iterable[BrokenSkill]) -> None:
    for fault in faults:
        logger.warning(
            "skill_not_loaded",
            extra={"skill": fault.slug, "source": fault.source, "path": str(fault.path), "fault": fault.fault},
        )
