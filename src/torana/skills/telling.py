"""Skills as the HTTP interface and the commands tell of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torana.skills.standing import Look, Shown, Standing


def standing_body(standing: Standing) -> dict[str, Any]:
    """A skill in a list."""
    return {
        "slug": standing.slug,
        "title": standing.title,
        "source": standing.source,
        "description": standing.description,
        "version": standing.version,
        "state": standing.state,
        "fault": standing.fault,
        "installed": standing.installed,
        "origin": standing.origin,
        "granted": standing.granted,
        "digest": standing.digest,
        "newerDigest": standing.newer,
    }


def shown_body(shown: Shown) -> dict[str, Any]:
    """A skill with all that is to be read of it."""
    versions = {"current": shown.current, "newer": shown.newer}
    return standing_body(shown.standing) | {name: look and _look_body(look) for name, look in versions.items()}


def _look_body(look: Look) -> dict[str, Any]:
    report = look.report
    return {
        "digest": look.skill.digest,
        "version": look.skill.version,
        "description": look.skill.description,
        "files": list(report.files),
        "bytes": report.bytes,
        "needs": {name: list(wanted) for name, wanted in asdict(report.needs).items()},
        "findings": [asdict(finding) for finding in report.findings],
        "moreFindings": report.more,
        "instructions": look.skill.instructions,
    }
