"""Bodies of the contract's endpoints: messages, replies, problems, health and skills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from torana.api.schemas.approvals import AskedApprovalBody
from torana.api.schemas.base import CLEAN, TEXT, Id, ReadFrom, Renamed, RequestBody, Time, Wire
from torana.messages import CONTENT_LIMIT, OnBusy, Turn
from torana.skills import MissingRequirement, Skill

if TYPE_CHECKING:  # commands that print such bodies start without the agent's library
    from torana.turns.open_approvals import WaitingTurn


class MessageBody(RequestBody):
    """A message to the agent. Unknown fields are ignored."""

    content: Annotated[
        str, Field(description="The message.", min_length=1, max_length=CONTENT_LIMIT, pattern=TEXT)
    ]
    channel_id: Id | None = None
    """The channel of the session that the message continues. Without it the message starts a session in a new
    channel. An integer stands for its decimal string.
    """
    user_id: Id | None = None
    """The user who sends the message, for the user's limits and memory. An integer stands for its decimal
    string.
    """
    on_busy: OnBusy | None = "queue"
    """The handling of the message while the session is busy: `queue` (it waits), `steer` (the running turn
    takes it in), `interrupt` (the running turn is cancelled), `reject` (409). Only the user who started the
    running turn, with the same token, can steer or interrupt it; any other message is queued.
    """


class InputPartsBody(Wire):
    """An estimate of the parts of `inputTokens`. All are 0 for the model `builtin`."""

    instructions: Annotated[int, Field(description="The instructions, with memories, skills and the summary.")]
    tools: Annotated[int, Field(description="The definitions of tools.")]
    history: Annotated[int, Field(description="Earlier messages, this message, and results of tools.")]


class FileBody(RequestBody):
    """A file of a message. Its type is detected from its content."""

    name: Annotated[str, Field(description="The name, of which 64 characters are used.", pattern=CLEAN)]
    data: Annotated[
        str,
        Field(
            description="The content in base64, at most 3,750,000 bytes.",
            pattern="^[A-Za-z0-9+/]*={0,2}$",
            json_schema_extra={"contentEncoding": "base64"},
        ),
    ]


class MessageWithFilesBody(MessageBody):
    """A message to the agent, with files. Unknown fields are ignored."""

    files: Annotated[
        list[FileBody] | None,
        Field(
            description="Files for the model, of the kinds that `model_files` names and the model accepts. "
            "A line for each of them is added to the message.",
            max_length=5,
        ),
    ] = None


class UsageBody(Wire):
    """The usage of a turn. The cost is 0 if the price of the model is unknown."""

    input_tokens: int
    output_tokens: int
    cost_usd: float
    estimated_input: InputPartsBody


class AnswerBody(Renamed):
    """The agent's reply to a message, or the approval question that its turn waits for."""

    reply: str
    id: Annotated[str, Field(description="The id of the turn.")]
    channel_id: Annotated[str, ReadFrom("channel")]
    user_id: Annotated[str | None, ReadFrom("user")]
    session_id: str
    status: Annotated[Literal["completed", "waiting"], ReadFrom("state")]
    """`waiting` means that a tool call waits for approval. `reply` then ends with the question. A message `yes`
    or `no` of the same user in the same channel answers it.
    """
    approval: Annotated[
        AskedApprovalBody | None,
        Field(
            description="The approval that the turn waits for; only if it is `waiting`.",
            exclude_if=lambda approval: approval is None,
        ),
    ] = None
    model: str
    usage: UsageBody
    created_at: Time

    @classmethod
    def from_turn(cls, turn: Turn) -> Self:
        """Return the body of a completed turn."""
        return cls.from_object(turn, reply=turn.reply or "", approval=None, model=turn.model or "unknown")

    @classmethod
    def from_waiting(cls, waiting: WaitingTurn) -> Self:
        """Return the body of a turn that waits for an approval, with the question as its reply."""
        body = cls.from_turn(waiting.turn)
        approval = AskedApprovalBody.model_validate(waiting.approval)
        return body.model_copy(update={"reply": waiting.text, "status": "waiting", "approval": approval})


class ProblemFault(Wire):
    """An invalid field: a JSON pointer to it, and what is wrong with it."""

    pointer: str
    detail: str


class ProblemBody(Wire):
    """An error (RFC 9457). `error` is a short text, `code` is stable."""

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
    """The number of loaded skills, by source."""

    core: int
    user: int


class HealthBody(BaseModel):
    """The health of the gateway."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["ok", "starting", "degraded", "draining"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    uptime: Annotated[int, Field(ge=0, description="Whole seconds since the start.")]
    memory: Annotated[str, Field(pattern=r"^\d+MB$", description="The resident memory.")]
    skills: SkillCounts
    connectors: Annotated[list[str], Field(description="The active connector accounts, by name.")]


class Missing(Wire):
    """The environment variables and programs that a skill requires and this machine lacks."""

    env: list[str]
    bins: list[str]


class SkillBody(Wire):
    """A loaded skill."""

    slug: str
    title: str
    source: Literal["core", "user"]
    description: str
    requires_auth: Annotated[bool, Field(description="True if the skill declares credentials that it needs.")]
    version: str | None
    license: str | None
    eligible: Annotated[bool, Field(description="True if this machine meets all requirements of the skill.")]
    missing: Missing
    tags: list[str]
    digest: str

    @classmethod
    def from_skill(cls, skill: Skill, missing: MissingRequirement) -> Self:
        """Return the body of a loaded skill."""
        return cls.from_object(skill, eligible=not any(missing.values()), missing=missing)
