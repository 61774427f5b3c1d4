"""A skill on a terminal: what it is, what it wants, and what was found in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torana.skills.suspects import KINDS

#: What a skill may want, and how that is said.
_WANTED = {
    "scripts": "scripts it can run",
    "bins": "programs",
    "hosts": "hosts",
    "secrets": "secrets",
    "directories": "directories to read",
    "writable": "directories to write",
}


def report_lines(version: Mapping[str, Any]) -> Iterator[str]:
    """What is to be read of a version of a skill before it is approved; as the gateway tells it in JSON."""
    yield f"digest {version['digest']}"
    yield f"{len(version['files'])} files, {version['bytes']:,} bytes"
    wanted = {words: version["needs"][name] for name, words in _WANTED.items() if version["needs"][name]}
    yield "It wants:" if wanted else "It wants nothing but to be read."
    yield from (f"  {words}: {', '.join(names)}" for words, names in wanted.items())
    findings = version["findings"]
    yield "Look at:" if findings else "Nothing in it looks wrong; that is no proof."
    kind = None
    for finding in findings:
        if finding["kind"] != kind:
            kind = finding["kind"]
            yield f"  {kind}: {KINDS.get(kind, '')}"
        place = f"{finding['file']}:{finding['line']}" if finding["line"] else finding["file"]
        yield f"    {place}  {finding['excerpt']}"
    if version["moreFindings"]:
        yield f"  and {version['moreFindings']:,} more places"
