"""One skill: a folder with a ``SKILL.md`` in the format of agentskills.io.

Parsing is strict for what Torana uses (name, size, encoding, links), and lenient for other content of skills
written for other agents. A description that is too long is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torana.skills.errors import SkillFileError, SkillInvalid
from torana.skills.folder import BYTES_LIMIT, SkillFile, digest, find_files, read_text
from torana.skills.format.body import examples_of, heading_of
from torana.skills.format.front_matter import (
    PHRASES,
    TOOL_NAMES,
    Fields,
    mapping_of,
    names_of,
    split,
    text_of,
)
from torana.skills.format.manifest import Needs, needs_of, requirements_of
from torana.skills.format.triggers import SkillTrigger, triggers_of

Source = Literal["core", "user"]

SKILL_BYTES_LIMIT = 256 * 1024
SLUG_LIMIT = 64
DESCRIPTION_LIMIT = 1024
TITLE_LIMIT = 100
LABEL_LIMIT = 200

_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill as its folder defines it. Every text except ``instructions`` is one line."""

    slug: str
    title: str
    source: Source
    description: str
    #: The Markdown below the front matter.
    instructions: str
    #: The skill's folder.
    path: Path
    version: str | None
    license: str | None
    tags: tuple[str, ...]
    #: Names from ``allowed-tools``; they may be tools of other agents.
    tools: tuple[str, ...]
    #: Examples of messages for the skill.
    examples: tuple[str, ...]
    requires_env: tuple[str, ...]
    requires_bins: tuple[str, ...]
    #: One of these programs is enough.
    requires_any_bins: tuple[str, ...]
    primary_env: str | None
    #: The declared needs of its scripts; a declaration grants nothing.
    needs: Needs
    triggers: tuple[SkillTrigger, ...]
    #: ``sha256:…`` of every file of the folder.
    digest: str
    #: Parts that exceed a limit of the format and are not used in full.
    warnings: tuple[str, ...] = ()

    @property
    def requires_auth(self) -> bool:
        return bool(self.requires_env or self.primary_env)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSkill:
    """A folder that could not be loaded, and why. ``slug`` is its name, which may be no valid slug."""

    slug: str
    source: Source
    path: Path
    fault: str


def parse_skill(directory: Path, *, source: Source) -> Skill:
    """Read the skill in ``directory`` without running anything in it.

    The slug is the folder's name, even if ``name`` differs. Raises ``SkillInvalid`` for any other content.
    """
    files = find_files(directory)
    fields, body = split(_skill_text(files))
    metadata = mapping_of(fields.get("metadata"))
    required = requirements_of(metadata)
    needs = needs_of(metadata, required=required, files=(file.name for file in files))
    slug = _slug(fields, folder=directory.name)
    description = _description(fields)
    return Skill(
        slug=slug,
        title=_truncate(
            text_of(metadata.get("title")) or heading_of(body) or slug.replace("-", " ").capitalize(),
            TITLE_LIMIT,
        ),
        source=source,
        description=_truncate(description, DESCRIPTION_LIMIT),
        instructions=body,
        path=directory,
        version=_label(metadata, "version") or _label(fields, "version"),
        license=_label(fields, "license"),
        tags=names_of(metadata.get("tags") or fields.get("tags"), written=PHRASES),
        tools=names_of(fields.get("allowed-tools"), written=TOOL_NAMES),
        examples=examples_of(body),
        requires_env=required.env,
        requires_bins=required.bins,
        requires_any_bins=required.any_bins,
        primary_env=required.primary_env,
        needs=needs,
        triggers=triggers_of(metadata, scripts=needs.scripts),
        digest=digest(files),
        warnings=tuple(_warnings(description)),
    )


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


def slug_in(directory: Path, *, folder: str) -> str:
    """Return the slug of the skill: its own name if valid, else ``folder``, else a similar slug.

    Raises ``SkillInvalid`` if the front matter cannot be read.
    """
    fields, _ = split(_skill_text(find_files(directory)))
    name = text_of(fields.get("name")) or folder
    return next(filter(is_slug, (name, folder)), None) or _suggest_slug(name)


def is_slug(name: str) -> bool:
    return len(name) <= SLUG_LIMIT and _SLUG.fullmatch(name) is not None


def _skill_text(files: tuple[SkillFile, ...]) -> str:
    named = {file.name: file for file in files}
    file = named.get("SKILL.md") or named.get("skill.md")
    if file is None:
        raise SkillInvalid("There is no SKILL.md in the folder; add one, or move the folder elsewhere.")
    try:
        return read_text(file, limit=SKILL_BYTES_LIMIT)
    except SkillFileError as error:
        raise SkillInvalid(str(error)) from error


def _slug(fields: Fields, *, folder: str) -> str:
    if text_of(fields.get("name")) is None:
        raise SkillInvalid(f"SKILL.md has no name; add `name: {_suggest_slug(folder)}` to its front matter.")
    if not is_slug(folder):
        raise SkillInvalid(
            f"The folder's name {folder!r} cannot be a skill's; rename it to at most {SLUG_LIMIT} lowercase "
            f"letters, digits and single hyphens, such as {_suggest_slug(folder)!r}."
        )
    return folder


def _description(fields: Fields) -> str:
    description = text_of(fields.get("description"))
    if description is None:
        raise SkillInvalid(
            "SKILL.md has no description; add `description: …` to its front matter: what the skill does and "
            "when to use it."
        )
    return description


def _warnings(description: str) -> Iterator[str]:
    if len(description) > DESCRIPTION_LIMIT:
        yield (
            f"The description in SKILL.md has {len(description):,} characters, and only the first "
            f"{DESCRIPTION_LIMIT:,} are used; move details below the front matter."
        )


def _label(fields: Fields, key: str) -> str | None:
    text = text_of(fields.get(key))
    return text and _truncate(text, LABEL_LIMIT)


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _suggest_slug(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join(words)[:SLUG_LIMIT].strip("-") or "my-skill"
