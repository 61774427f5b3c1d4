"""Bodies of skills: their state, their needs and the findings in them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool

from torana.api.schemas.base import CLEAN, NotBlank, ReadFrom, Renamed, RequestBody, Wire
from torana.skills.installation.sources import ADDRESS_LIMIT
from torana.skills.status import SkillDetails, StandingState


class SkillStandingBody(Renamed):
    """A skill in any state."""

    slug: str
    title: str
    source: Literal["core", "user"]
    description: str
    version: str | None
    state: StandingState
    """`active`: loaded. `quarantine`: waits for approval. `disabled`: switched off. `changed`: its files differ
    from the approved files. `broken`: unreadable.
    """
    fault: Annotated[str | None, Field(description="The fault, and how to repair it.")]
    installed: Annotated[bool, Field(description="False for a folder that was placed by hand.")]
    origin: Annotated[str | None, Field(description="The source that the skill was installed from.")]
    granted: Annotated[bool, Field(description="True if its scripts may run, with the resources they need.")]
    digest: str | None
    newer_digest: Annotated[str | None, ReadFrom("newer")]
    """The digest of a newer version in quarantine."""
    warnings: Annotated[list[str], Field(description="Parts that are too long and not used in full.")]


class SkillStandingsBody(Wire):
    """All skills."""

    items: list[SkillStandingBody]
    next: Annotated[None, Field(description="Always null: the list has one page.")]


class NeedsBody(Wire):
    """The resources that the scripts of a skill need."""

    bins: list[str]
    hosts: list[str]
    secrets: Annotated[list[str], Field(description="Names of environment variables.")]
    directories: list[str]
    writable: list[str]
    scripts: list[str]


class FindingBody(Wire):
    """A place in a skill that a person should review."""

    kind: str
    file: str
    line: int | None
    excerpt: str


class SkillVersionBody(Renamed):
    """A version of a skill, to review before it is approved."""

    digest: Annotated[str, ReadFrom("skill.digest")]
    version: Annotated[str | None, ReadFrom("skill.version")]
    description: Annotated[str, ReadFrom("skill.description")]
    files: Annotated[list[str], ReadFrom("report.files")]
    bytes: Annotated[int, ReadFrom("report.bytes")]
    needs: Annotated[NeedsBody, ReadFrom("report.needs")]
    findings: Annotated[list[FindingBody], ReadFrom("report.findings")]
    more_findings: Annotated[int, ReadFrom("report.more")]
    """The number of findings that `findings` leaves out."""
    warnings: Annotated[list[str], ReadFrom("skill.warnings")]
    """Parts that are too long and not used in full."""
    instructions: Annotated[str, ReadFrom("skill.instructions")]


class SkillDetailBody(SkillStandingBody):
    """A skill with its versions."""

    current: Annotated[SkillVersionBody | None, Field(description="Null if the skill is broken.")]
    newer: SkillVersionBody | None
    """A newer version in quarantine; null if there is none."""

    @classmethod
    def from_details(cls, details: SkillDetails) -> Self:
        """Return the body of a skill with its versions."""
        return cls.from_object(details.status, current=details.current, newer=details.newer)


class RemovedSkillBody(Wire):
    """A removed skill."""

    slug: str


class SkillRequest(RequestBody):
    """The source of a skill to install. Unknown fields are ignored."""

    source: Annotated[
        NotBlank,
        Field(
            description="The https URL of a zip or tar.gz file or of a git repository. A branch, a tag or a "
            "commit follows a `#`.",
            max_length=ADDRESS_LIMIT,
        ),
    ]
    path: Annotated[str, Field(max_length=300, pattern=CLEAN)] | None = None
    """The folder of the skill, if the source contains several."""


class SkillApproval(RequestBody):
    """The approval of a skill. Unknown fields are ignored."""

    digest: Annotated[
        NotBlank,
        Field(
            description="The digest of the reviewed files, from `GET /v1/skills/{slug}`.",
            max_length=100,
        ),
    ]
    scripts: StrictBool | None = True
    """True to let the scripts of the skill run, with the resources they need. Without scripts the agent uses
    only the instructions of the skill.
    """
