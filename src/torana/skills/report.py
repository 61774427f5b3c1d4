"""What a skill wants, and what in its files a reader should look at before approving it.

It points at places, with file and line; it is no proof. Every pattern is bounded, so that no text makes the
search slow, and what was not searched is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from torana.skills.faults import SkillInvalid
from torana.skills.folder import File, find_files
from torana.skills.needs import Needs
from torana.skills.skill import Skill
from torana.skills.suspects import KINDS, suspects

FINDINGS_LIMIT = 200
#: Of one kind in one file.
_OF_A_KIND = 5
_EXCERPT = 160
_FILE_BYTES = 512 * 1024
_TOTAL_BYTES = 2 * 1024 * 1024
_LONG_LINE = 2_000
#: Lines are searched in pieces of this length; what a pattern finds is shorter than their overlap.
_PIECE, _OVERLAP = 20_000, 700
#: What is looked for in texts alone.
_OF_TEXT = ("hidden-unicode", "long-line")
#: Not every language's: what is a comment in one may be run in another.
_COMMENT = re.compile(r"\s{0,99}(?:#(?!!)|//\s)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A place to look at; ``kind`` is one of ``KINDS``, ``line`` counts from 1."""

    kind: str
    file: str
    line: int | None = None
    #: What stands there, with escapes for what does not show.
    excerpt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a skill wants and what was found in it, the gravest first; of ``more`` only the number is told."""

    needs: Needs
    files: tuple[str, ...]
    bytes: int
    findings: tuple[Finding, ...]
    more: int


def report_on(skill: Skill, *, core: Collection[str]) -> Report:
    """Read every file of a skill's folder. ``core`` are the slugs of the package's skills.

    Raises ``SkillInvalid`` for a folder that is broken or gone by now.
    """
    files = find_files(skill.path)
    few, count = _few(chain(_replaced(skill, core), _findings(files, scripts=skill.needs.scripts)))
    order = {kind: place for place, kind in enumerate(KINDS)}
    few.sort(key=lambda finding: (order[finding.kind], finding.file, finding.line or 0))
    shown = few[:FINDINGS_LIMIT]
    return Report(
        needs=skill.needs,
        files=tuple(file.name for file in files),
        bytes=sum(file.size for file in files),
        findings=tuple(shown),
        more=count - len(shown),
    )


def _replaced(skill: Skill, core: Collection[str]) -> Iterator[Finding]:
    if skill.slug in core:
        yield Finding(kind="replaces-core", file="SKILL.md", excerpt=skill.slug)


def _few(findings: Iterable[Finding]) -> tuple[list[Finding], int]:
    """The first few of each kind in each file, and how many findings there are in all."""
    seen = Counter[tuple[str, str]]()
    few: list[Finding] = []
    for finding in findings:
        seen[finding.kind, finding.file] += 1
        if seen[finding.kind, finding.file] <= _OF_A_KIND:
            few.append(finding)
    return few, seen.total()


def _findings(files: Iterable[File], *, scripts: Collection[str]) -> Iterator[Finding]:
    room = _TOTAL_BYTES
    for file in files:
        data = _head(file, min(room, _FILE_BYTES))
        room -= len(data)
        text = _text(data, whole=len(data) == file.size)
        if text is None and (file.name in scripts or not _is_picture(data)):
            yield Finding(kind="binary", file=file.name, excerpt=_what(data))
        if len(data) < file.size:
            yield Finding(kind="not-searched", file=file.name, excerpt=f"after {len(data):,} bytes")
        if text is not None:
            yield from _in_text(file.name, text)
        else:
            yield from _in_bytes(file.name, data)


def _head(file: File, limit: int) -> bytes:
    try:
        with Path(file.path).open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise SkillInvalid(f"{file.name} cannot be read ({error.strerror}); mend or remove it.") from error


def _text(data: bytes, *, whole: bool) -> str | None:
    """The text of a file's beginning; None where it is none. Where it is not whole, a character may be cut."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        is_cut = not whole and error.start >= len(data) - 3
        return data[: error.start].decode("utf-8-sig") if is_cut else None


#: What binary files begin with; pictures and fonts are told by nothing but their names and do no harm.
_MAGIC = {
    b"\x7fELF": "a program for Linux",
    b"MZ": "a program for Windows",
    b"\xcf\xfa\xed\xfe": "a program for macOS",
    b"\xca\xfe\xba\xbe": "a program for macOS or Java",
    b"\0asm": "a WebAssembly program",
    b"PK": "an archive",
    b"\x1f\x8b": "an archive",
}
_PICTURES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"wOFF", b"wOF2", b"\0\1\0\0", b"OTTO")


def _is_picture(data: bytes) -> bool:
    return data.startswith(_PICTURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def _what(data: bytes) -> str:
    return next((what for magic, what in _MAGIC.items() if data.startswith(magic)), "no text in UTF-8")


def _in_bytes(name: str, data: bytes) -> Iterator[Finding]:
    """What stands between the bytes of a file that is no text: a shell passes over what it does not understand.

    How long its lines are and which of its characters do not show says nothing.
    """
    for finding in _in_text(name, data.decode("latin-1")):
        if finding.kind not in _OF_TEXT:
            yield finding


def _in_text(name: str, text: str) -> Iterator[Finding]:
    """The findings in a text; those in comments last, so that they stand for no line that is run."""
    # Not splitlines: its other line ends would shift the numbers that editors show.
    lines = enumerate(text.split("\n"), start=1)
    for number, line in sorted(lines, key=lambda numbered: bool(_COMMENT.match(numbered[1]))):
        if len(line) > _LONG_LINE:
            yield Finding(kind="long-line", file=name, line=number, excerpt=f"{len(line):,} characters")
        for start in range(0, max(len(line), 1), _PIECE):
            piece = line[start : start + _PIECE + _OVERLAP]
            for kind, at in suspects(piece):
                around = piece[max(0, at - 20) : at + _EXCERPT].strip()
                yield Finding(kind=kind, file=name, line=number, excerpt=_shown(around)[:_EXCERPT])


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
