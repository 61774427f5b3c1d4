"""Bodies of skills: how they stand, what they want, and what was found in them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from torana.api.shapes.base import CLEAN, TEXT, Wire
from torana.skills.sources import ADDRESS_LIMIT
from torana.skills.standing import StandingState

PATH_LIMIT = 300
DIGEST_LIMIT = 100


class SkillStandingBody(Wire):
    """A skill, loaded or not."""

    slug: str
    title: str
    source: Literal["core", "user"]
    description: str
    version: str | None
    state: Annotated[
        StandingState,
        Field(
            description="`active` is loaded; `quarantine` waits for approval; `changed` has other files than "
            "were approved; `broken` cannot be read."
        ),
    ]
    fault: Annotated[str | None, Field(description="What is wrong, and the cure.")]
    installed: Annotated[bool, Field(description="False where it was placed by hand.")]
    origin: Annotated[str | None, Field(description="Where it was installed from.")]
    granted: Annotated[bool, Field(description="Whether its scripts may be run, with what it needs.")]
    digest: str | None
    newer_digest: Annotated[str | None, Field(description="Of a newer version, in quarantine.")]


class SkillStandingsBody(Wire):
    """All skills; there is but one page of them."""

    items: list[SkillStandingBody]
    next: None


class NeedsBody(Wire):
    """What a skill's scripts want of the machine."""

    bins: list[str]
    hosts: list[str]
    secrets: Annotated[list[str], Field(description="Names of environment variables.")]
    directories: list[str]
    writable: list[str]
    scripts: list[str]


class FindingBody(Wire):
    """A place in a skill that a reader should look at."""

    kind: str
    file: str
    line: int | None
    excerpt: str


class SkillVersionBody(Wire):
    """A version of a skill, as it is to be read before it is approved."""

    digest: str
    version: str | None
    description: str
    files: list[str]
    bytes: int
    needs: NeedsBody
    findings: list[FindingBody]
    more_findings: int
    instructions: str


class SkillDetailBody(SkillStandingBody):
    """A skill with all that is to be read of it; null where its folder is broken, or there is no newer one."""

    current: SkillVersionBody | None
    newer: SkillVersionBody | None


class RemovedSkillBody(Wire):
    """A skill that was removed."""

    slug: str


class SkillRequest(Wire):
    """Where to install a skill from. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    source: Annotated[
        str,
        Field(
            description="An https URL of a zip or tar.gz file, or of a git repository; behind `#` a "
            "branch, a tag or a commit.",
            max_length=ADDRESS_LIMIT,
            pattern=TEXT,
        ),
    ]
    path: Annotated[
        str | None,
        Field(description="The skill's folder, where there are several.", max_length=PATH_LIMIT, pattern=CLEAN),
    ] = None


class SkillApproval(Wire):
    """What is approved. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    digest: Annotated[
        str,
        Field(
            description="Of the files that you looked at, as `GET /v1/skills/{slug}` gives it.",
            max_length=DIGEST_LIMIT,
            pattern=TEXT,
        ),
    ]
    scripts: Annotated[
        bool | None,
        Field(description="Whether its scripts may be run, with what it needs; else it is instructions."),
    ] = True
