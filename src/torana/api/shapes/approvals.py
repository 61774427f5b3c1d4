"""Bodies of approvals and of tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from torana.api.shapes.base import CLEAN, Wire
from torana.store.approvals import ApprovalState
from torana.tools import Permission


class ApprovalBody(Wire):
    """A call of a tool that waits, or waited, for somebody's yes."""

    id: str
    digest: Annotated[
        str,
        Field(
            description="Stands for exactly this tool with these `arguments`: `sha256:` and the SHA-256, in "
            "hexadecimal digits, of the JSON object of `arguments` and `tool` with sorted names, without "
            "spaces and with everything that is not ASCII escaped.",
            pattern="^sha256:[0-9a-f]{64}$",
        ),
    ]
    turn_id: str
    call_id: Annotated[str, Field(description="Unique within the turn.")]
    tool: str
    arguments: Annotated[dict[str, Any], Field(description="Those that the model chose.")]
    state: Annotated[
        ApprovalState, Field(description="`withdrawn` where its turn ended before anybody had decided.")
    ]
    edited: Annotated[
        dict[str, Any] | None, Field(description="Those of whoever approved it with other arguments.")
    ]
    reason: Annotated[str | None, Field(description="What the model is told where it was denied.")]
    created_at: AwareDatetime
    expires_at: Annotated[AwareDatetime, Field(description="From then on it is a no.")]
    decided_at: AwareDatetime | None


class ApprovalsBody(Wire):
    """A page of open approvals."""

    items: list[ApprovalBody]
    next: Annotated[str | None, Field(description="`after` for the next page.")]


class DecisionRequest(Wire):
    """What is decided about a call. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    decision: Literal["approve", "deny"]
    arguments: Annotated[
        dict[str, Any] | None,
        Field(description="With `approve`: run it with these instead, checked as the model's are."),
    ] = None
    reason: Annotated[
        str | None,
        Field(
            description="What the model is told of a denial.",
            max_length=500,
            json_schema_extra={"pattern": CLEAN},
        ),
    ] = None
    digest: Annotated[
        str | None,
        Field(
            description="The `digest` of the call that was shown; a decision about another call is refused "
            "with `approval_changed`. To approve by approval id it is required.",
            max_length=100,
            json_schema_extra={"pattern": CLEAN},
        ),
    ] = None


class ToolBody(Wire):
    """A tool, and what holds for it."""

    name: str
    description: str
    idempotent: Annotated[bool, Field(description="Whether it is run again where a crash cut it off.")]
    permission: Permission
    why: Annotated[str, Field(description="The rule that decided, or that none did.")]


class ToolsBody(Wire):
    """All tools."""

    items: list[ToolBody]
    next: Annotated[None, Field(description="They are all there.")]
    unknown: Annotated[list[str], Field(description="Names in `[[permissions]]` that are no tool's.")]
