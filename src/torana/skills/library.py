"""All skills there are: those of the package, and the user's, which come and go while the gateway runs.

The user's are those that were placed by hand and those that were installed and approved.
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
from pathlib import Path, PurePosixPath
from typing import TypedDict

from torana.skills.faults import SkillFileError, SkillInvalid
from torana.skills.folder import File, find_files, read_text
from torana.skills.installed import InstalledSkills, apart
from torana.skills.shelf import Item, Shelf
from torana.skills.skill import BrokenSkill, Skill, Source

#: Where the package's own skills are.
CORE_DIR = Path(__file__).with_name("core")

FILE_BYTES_LIMIT = 64 * 1024
#: Seconds between two looks at the user's directory, and how long one may hold up who asks.
LOOK_INTERVAL = 1.0
PATIENCE = 0.02

logger = logging.getLogger(__name__)


class Missing(TypedDict):
    """What a skill requires and this machine lacks. ``"a | b"`` among the bins: one of them is enough."""

    env: list[str]
    bins: list[str]


class SkillRecord(TypedDict):
    """A skill as the HTTP interface shows it."""

    slug: str
    title: str
    source: Source
    description: str
    requiresAuth: bool
    version: str | None
    license: str | None
    eligible: bool
    missing: Missing
    tags: list[str]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The skills at one moment; an equal one is the same object, so it can be compared with ``is``."""

    #: Sorted by source, then slug; each slug once.
    loaded: tuple[Skill, ...]
    #: Sorted likewise.
    broken: tuple[BrokenSkill, ...]
    #: Changes whenever a record, a file of a skill or a fault changes. Opaque, without quotes.
    etag: str

    def get(self, slug: str) -> Skill | None:
        """The loaded skill of that slug."""
        return next((skill for skill in self.loaded if skill.slug == slug), None)

    def counts(self) -> dict[Source, int]:
        """How many are loaded from each source."""
        sources = [skill.source for skill in self.loaded]
        return {"core": sources.count("core"), "user": sources.count("user")}


def in_background(work: Callable[[], object]) -> None:
    """Run ``work`` in a thread of its own, and wait for it for a moment: a small directory is read by then."""
    thread = threading.Thread(target=work, name="skills", daemon=True)
    thread.start()
    thread.join(PATIENCE)


class Skills:
    """Core and user skills as one catalogue, for any thread.

    A user's skill takes the place of a core skill of the same slug, and one that was placed by hand that of an
    installed one; a broken one does not. ``environ`` and
    ``which`` answer what a skill may require; ``monotonic`` counts seconds; ``background`` runs a look at the
    user's directory, which takes as long as the disk does.
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
        self._core = Shelf(directory=core_dir, source="core")
        self._user = Shelf(directory=user_dir, source="user") if user_dir else None
        self._user_dir = user_dir
        self._installed = installed
        self._environ = environ
        self._which = which
        self._monotonic = monotonic
        self._background = background
        self._core_items: tuple[Item, ...] | None = None
        self._catalogue: Catalogue | None = None
        self._next_look = 0.0
        # Held while the directories are read: taken by who asks, given back by the thread that reads.
        self._looking = threading.Lock()

    def catalogue(self) -> Catalogue:
        """The skills as they were last found.

        Cheap enough for every message: at most once a second a look at the user's directory begins in the
        background, and who asks waits for it for 20 ms at most. So a change is seen within about a second, and
        in a large directory by the question after the next look. Only folders that changed are read; each new
        fault is logged once. The first call reads everything. Raises nothing.
        """
        known = self._catalogue
        if known is None:
            self._looking.acquire()
            return self._look()
        if self._monotonic() >= self._next_look and self._looking.acquire(blocking=False):
            self._background(self._look)
        return self._catalogue or known

    def refresh(self) -> Catalogue:
        """Look at once, behind a look that is under way, and wait for it: a change is to be seen now."""
        self._looking.acquire()
        return self._look()

    def by_hand(self, slug: str) -> Path | None:
        """The folder of that name that was placed by hand, whether it is loaded or not."""
        folder = self._user_dir / slug if self._user_dir else None
        return folder if folder is not None and folder.is_dir() else None

    def missing(self, skill: Skill) -> Missing:
        """What the skill requires and is not there; nothing missing makes it eligible."""
        bins = [name for name in skill.requires_bins if self._which(name) is None]
        if skill.requires_any_bins and not any(self._which(name) for name in skill.requires_any_bins):
            bins.append(" | ".join(skill.requires_any_bins))
        return {"env": [name for name in skill.requires_env if not self._environ.get(name)], "bins": bins}

    def record(self, skill: Skill) -> SkillRecord:
        """The skill as ``GET /skills`` lists it."""
        missing = self.missing(skill)
        return {
            "slug": skill.slug,
            "title": skill.title,
            "source": skill.source,
            "description": skill.description,
            "requiresAuth": skill.requires_auth,
            "version": skill.version,
            "license": skill.license,
            "eligible": not any(missing.values()),
            "missing": missing,
            "tags": list(skill.tags),
            "digest": skill.digest,
        }

    def files(self, skill: Skill) -> tuple[str, ...]:
        """The paths of the skill's files, relative to its folder, sorted; hidden ones are no part of it.

        Raises ``SkillFileError`` when the folder is broken or gone by now.
        """
        return tuple(self._find(skill))

    def read_file(self, slug: str, relative_path: str) -> str:
        """The text of one of a loaded skill's files, of at most 64 KiB.

        Only what ``files`` lists can be read, so no path leads out of the folder. Raises ``SkillFileError``.
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
            self._catalogue = self._refreshed(self._catalogue)
            return self._catalogue
        finally:
            self._looking.release()

    def _refreshed(self, known: Catalogue | None) -> Catalogue:
        if self._core_items is None:
            self._core_items = self._core.look()
        fresh = self._compose([*self._core_items, *self._users()])
        if known is not None and fresh == known:
            return known
        reported = known.broken if known else ()
        _log_faults(fault for fault in fresh.broken if fault not in reported)
        return fresh

    def _users(self) -> list[Item]:
        by_hand = self._user.look() if self._user else ()
        if self._installed is None:
            return [*by_hand]
        return [*self._installed.look(), *apart(by_hand, self._installed.disabled())]

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

    def _find(self, skill: Skill) -> dict[str, File]:
        try:
            return {file.name: file for file in find_files(skill.path)}
        except SkillInvalid as error:
            raise SkillFileError(f"The skill {skill.slug!r} cannot be read: {error}") from error

    def _nearest(self, slug: str) -> str:
        near = get_close_matches(slug, [skill.slug for skill in self.catalogue().loaded], n=1)
        return f" The nearest is {near[0]!r}." if near else ""


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
