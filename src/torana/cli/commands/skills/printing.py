"""Print a skill on a terminal: its description, needs and findings."""

from __future__ import annotations

from collections.abc import Iterator

from torana.api.schemas.skills import SkillVersionBody
from torana.skills.scanner import KINDS

#: The needs of a skill with their labels.
_WANTED = {
    "scripts": "scripts it may run",
    "bins": "programs",
    "hosts": "hosts",
    "secrets": "secrets",
    "directories": "directories to read",
    "writable": "directories to write",
}


def report_lines(version: SkillVersionBody) -> Iterator[str]:
    """Yield the lines to read before a version of a skill is approved."""
    yield f"digest {version.digest}"
    yield f"{len(version.files)} files, {version.bytes:,} bytes"
    yield from (f"Warning: {warning}" for warning in version.warnings)
    needs = version.needs.model_dump()
    wanted = {words: needs[name] for name, words in _WANTED.items() if needs[name]}
    yield "It requests:" if wanted else "It requests no resources."
    yield from (f"  {words}: {', '.join(names)}" for words, names in wanted.items())
    yield (
        "Look at:" if version.findings else "No suspicious lines were found. This is no proof that it is safe."
    )
    kind = None
    for finding in version.findings:
        if finding.kind != kind:
            kind = finding.kind
            yield f"  {kind}: {KINDS.get(kind, '')}"
        place = f"{finding.file}:{finding.line}" if finding.line else finding.file
        yield f"    {place}  {finding.excerpt}"
    if version.more_findings:
        yield f"  and {version.more_findings:,} more places"
