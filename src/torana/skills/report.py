"""Report a skill's needs, and the lines of its files to review before approval.

A finding is a file and line to review, not a proof. Every pattern is bounded, so that no text makes the search
slow, and the report names the parts that were not searched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from torana.characters import escape_unprintable
from torana.skills.errors import SkillInvalid
from torana.skills.folder import SkillFile, find_files
from torana.skills.format.manifest import Needs
from torana.skills.scanner import KINDS, find_suspicious
from torana.skills.skill import Skill

FINDINGS_LIMIT = 200
#: The maximum number of findings of one kind in one file.
_OF_A_KIND = 5
_EXCERPT = 160
_FILE_BYTES = 512 * 1024
_TOTAL_BYTES = 2 * 1024 * 1024
_LONG_LINE = 2_000
#: Lines are searched in pieces of this length; every match is shorter than their overlap.
_PIECE, _OVERLAP = 20_000, 700
#: Kinds that apply only to text files.
_OF_TEXT = ("hidden-unicode", "long-line")
#: Only some languages: a comment in one language may be code in another.
_COMMENT = re.compile(r"\s{0,99}(?:#(?!!)|//\s)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFinding:
    """A place to review. ``kind`` is one of ``KINDS``; ``line`` counts from 1."""

    kind: str
    file: str
    line: int | None = None
    #: The text there, with invisible characters escaped.
    excerpt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillReport:
    """A skill's needs and findings, the most severe first. ``more`` is the number of omitted findings."""

    needs: Needs
    files: tuple[str, ...]
    bytes: int
    findings: tuple[ReportFinding, ...]
    more: int


def report_on(skill: Skill, *, core: Collection[str]) -> SkillReport:
    """Read every file of a skill's folder and report on it. ``core`` are the slugs of the package's skills.

    Raises ``SkillInvalid`` if the folder is broken or was deleted.
    """
    files = find_files(skill.path)
    replaced = [ReportFinding(kind="replaces-core", file="SKILL.md", excerpt=skill.slug)]
    found = _findings(files, scripts=skill.needs.scripts)
    few, count = _few(chain(replaced if skill.slug in core else (), found))
    order = {kind: place for place, kind in enumerate(KINDS)}
    few.sort(key=lambda finding: (order[finding.kind], finding.file, finding.line or 0))
    shown = few[:FINDINGS_LIMIT]
    return SkillReport(
        needs=skill.needs,
        files=tuple(file.name for file in files),
        bytes=sum(file.size for file in files),
        findings=tuple(shown),
        more=count - len(shown),
    )


def _few(findings: Iterable[ReportFinding]) -> tuple[list[ReportFinding], int]:
    """Return the first findings of each kind in each file, and the number of all findings."""
    seen = Counter[tuple[str, str]]()
    few: list[ReportFinding] = []
    for finding in findings:
        seen[finding.kind, finding.file] += 1
        if seen[finding.kind, finding.file] <= _OF_A_KIND:
            few.append(finding)
    return few, seen.total()


def _findings(files: Iterable[SkillFile], *, scripts: Collection[str]) -> Iterator[ReportFinding]:
    room = _TOTAL_BYTES
    for file in files:
        data = _head(file, min(room, _FILE_BYTES))
        room -= len(data)
        text = _text(data, whole=len(data) == file.size)
        if text is None and (file.name in scripts or not _is_picture(data)):
            what = next((name for magic, name in _MAGIC.items() if data.startswith(magic)), "no text in UTF-8")
            yield ReportFinding(kind="binary", file=file.name, excerpt=what)
        if len(data) < file.size:
            yield ReportFinding(kind="not-searched", file=file.name, excerpt=f"after {len(data):,} bytes")
        if text is not None:
            yield from _in_text(file.name, text)
        else:
            yield from _in_bytes(file.name, data)


def _head(file: SkillFile, limit: int) -> bytes:
    try:
        with Path(file.path).open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise SkillInvalid(f"{file.name} cannot be read ({error.strerror}); repair or remove it.") from error


def _text(data: bytes, *, whole: bool) -> str | None:
    """Return the text of a file's start, or None if it is not text. It may end inside a character."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        is_cut = not whole and error.start >= len(data) - 3
        return data[: error.start].decode("utf-8-sig") if is_cut else None


#: The first bytes of binary files. Images and fonts are harmless and are not reported.
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


def _in_bytes(name: str, data: bytes) -> Iterator[ReportFinding]:
    """Yield findings in the text between the bytes of a binary file: a shell skips bytes it cannot parse.

    Long lines and invisible characters are not reported there.
    """
    for finding in _in_text(name, data.decode("latin-1")):
        if finding.kind not in _OF_TEXT:
            yield finding


def _in_text(name: str, text: str) -> Iterator[ReportFinding]:
    """Yield the findings in a text; comments come last, so that they displace no findings in code."""
    # ``splitlines`` also splits at other characters: the line numbers would differ from those in editors.
    lines = enumerate(text.split("\n"), start=1)
    seen = Counter[str]()
    for number, line in sorted(lines, key=lambda numbered: bool(_COMMENT.match(numbered[1]))):
        if len(line) > _LONG_LINE:
            yield ReportFinding(kind="long-line", file=name, line=number, excerpt=f"{len(line):,} characters")
        for start in range(0, max(len(line), 1), _PIECE):
            piece = line[start : start + _PIECE + _OVERLAP]
            for kind, at in find_suspicious(piece):
                seen[kind] += 1  # ``_few`` shows no more than the first ones
                excerpt = ""
                if seen[kind] <= _OF_A_KIND:
                    excerpt = escape_unprintable(piece[max(0, at - 20) : at + _EXCERPT].strip())[:_EXCERPT]
                yield ReportFinding(kind=kind, file=name, line=number, excerpt=excerpt)
