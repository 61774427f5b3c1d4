"""The contract's bodies: messages, their answers, problems, health and skills."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from torana.api.shapes.base import CLEAN, TEXT, Id, Wire
from torana.messages import CONTENT_LIMIT, OnBusy


class MessageBody(Wire):
    """A message to the agent. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    content: Annotated[
        str, Field(description="The message.", min_length=1, max_length=CONTENT_LIMIT, pattern=TEXT)
    ]
    channel_id: Annotated[
        Id,
        Field(
            description="The session that the message continues; without it the message starts one of its own. "
            "An integer is its decimal string.",
        ),
    ] = None
    user_id: Annotated[
        Id,
        Field(description="Who speaks: enables limits and memory per user. An integer is its decimal string."),
    ] = None
    on_busy: Annotated[
        OnBusy | None,
        Field(
            description="What becomes of the message while the session is busy: `queue` (it waits its turn), "
            "`steer` (the running turn takes it in), `interrupt` (the running turn is cancelled), `reject` "
            "(409). Only the running turn's own speaker steers or interrupts it, with the token it was begun "
            "with; any other message is queued."
        ),
    ] = "queue"


class UsageBody(Wire):
    """What a turn consumed; the cost is 0 where the model's price is not known."""

    input_tokens: int
    output_tokens: int
    cost_usd: float


class AnswerBody(Wire):
    """The agent's answer to a message."""

    reply: str
    id: str
    channel_id: str
    user_id: str | None
    session_id: str
    status: Literal["completed"]
    model: str
    usage: UsageBody
    created_at: AwareDatetime


class ProblemFault(Wire):
    """A field at fault: a JSON pointer and what is wrong there."""

    pointer: str
    detail: str


class ProblemBody(Wire):
    """An error (RFC 9457): ``error`` is a short wording, ``code`` is stable."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    error: str
    code: str
    request_id: str
    errors: list[ProblemFault] | None = None
    retry_after_ms: int | None = None
    violated_policies: list[str] | None = None


class SkillCounts(BaseModel):
    """How many skills are loaded, by source."""

    core: int
    user: int


class HealthBody(BaseModel):
    """Whether the gateway works."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["ok", "starting", "degraded", "draining"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    uptime: Annotated[int, Field(ge=0, description="Whole seconds since start.")]
    memory: Annotated[str, Field(pattern=r"^\d+MB$", description="Resident memory.")]
    skills: SkillCounts
    connectors: Annotated[list[str], Field(description="The active ones, by name.")]


class Missing(Wire):
    """What a skill needs and has not got: environment variables and programs."""

    env: list[str]
    bins: list[str]


class SkillBody(Wire):
    """A loaded skill."""

    slug: str
    title: str
    source: Literal["core", "user"]
    description: str
    requires_auth: Annotated[bool, Field(description="Whether it declares credentials it needs.")]
    version: str | None
    license: str | None
    eligible: Annotated[bool, Field(description="Whether all that it needs is there.")]
    missing: Missing
    tags: list[str]
    digest: str
