"""Bodies of approvals and of tools."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, ValidationInfo, computed_field, field_validator, model_validator

from torana.api.schemas.base import CLEAN, Page, ReadFrom, Renamed, RequestBody, Time, Wire
from torana.permissions import Permission
from torana.store.rows.approvals import ApprovalState


def _read_arguments(value: object) -> dict[str, Any]:
    """Return arguments as plain JSON: without infinity, and without integers too long for Python to read."""
    try:
        plain: object = json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError("contains a number that is too large, or is nested too deeply") from error
    if not isinstance(plain, dict):
        raise ValueError("must be an object")  # noqa: TRY004 - pydantic translates ValueError only
    return plain  # pyright: ignore[reportUnknownVariableType]


class ApprovalBody(Wire):
    """A tool call that needs approval, and the decision if there is one."""

    id: str
    digest: Annotated[
        str | None,
        Field(
            description="The digest of the tool and its `arguments`: `sha256:` and the SHA-256, in hexadecimal "
            "digits, of the JSON object of `arguments` and `tool` with sorted names, without spaces, and with "
            "all non-ASCII characters escaped. Null if `hidden`.",
            pattern="^sha256:[0-9a-f]{64}$",
        ),
    ]
    turn_id: str
    call_id: Annotated[str, Field(description="The id of the tool call, unique within the turn.")]
    tool: str
    arguments: dict[str, Any] | None
    """The arguments that the model chose; null if `hidden`."""
    hidden: bool = False
    """True if the approval is decided, and its arguments are private data of one user in a channel with several
    users.
    """
    arguments_text: str | None
    """The JSON text of `edited` if it is set, otherwise of `arguments`, to be shown to the person who decides.
    Its numbers are exact, while JavaScript would round those of `arguments`. Its invisible characters are
    escaped.
    """
    state: ApprovalState
    """`withdrawn` means that the turn ended before a decision."""
    edited: dict[str, Any] | None
    """The arguments of the decision, if it changed them."""
    reason: Annotated[str | None, Field(description="The reason for a denial, as the model receives it.")]
    created_at: Time
    expires_at: Annotated[Time, Field(description="At this time an open approval counts as denied.")]
    decided_at: Time | None
    decided_by: str | None
    """The principal, such as `operator`, `token:tok_0198` or `connector:telegram`; `time` if the approval
    expired.
    """

    @model_validator(mode="after")
    def _hide(self) -> Self:
        if self.hidden:
            self.digest = self.arguments = self.arguments_text = self.edited = None
        return self


class AskedApprovalBody(ApprovalBody):
    """An open approval in the answer to a message."""

    @computed_field(
        description="The path to which the decision is sent, relative to the address of the gateway."
    )
    @property
    def url(self) -> str:
        return f"v1/approvals/{self.id}"


class ApprovalsBody(Page[ApprovalBody]):
    """A page of open approvals."""


class DecisionRequest(RequestBody):
    """A decision about a tool call. Unknown fields are ignored."""

    decision: Literal["approve", "deny"]
    arguments: Annotated[
        Annotated[dict[str, Any], PlainValidator(_read_arguments, json_schema_input_type=dict[str, Any])]
        | None,
        Field(description="With `approve`: other arguments for the tool, validated like the model's own."),
    ] = None
    reason: Annotated[str, Field(max_length=500, pattern=CLEAN)] | None = None
    """With `deny`: the reason, which the model receives."""
    digest: Annotated[str, Field(max_length=100, pattern=CLEAN)] | None = None
    """The `digest` of the call that was reviewed. A decision about another call fails with `approval_changed`.
    Required to approve by approval id.
    """

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        if arguments is not None and info.data.get("decision") == "deny":
            raise ValueError("can only be changed in an approval")
        return arguments


class ToolBody(Renamed):
    """A tool and its permission."""

    name: str
    description: str
    idempotent: Annotated[bool, Field(description="True if a call that a crash interrupted is repeated.")]
    permission: Annotated[Permission, ReadFrom("verdict.permission")]
    why: Annotated[str, ReadFrom("verdict.why")]
    """The rule that decided the permission, or a note that there is none."""


class ToolsBody(Renamed):
    """All tools."""

    items: Annotated[list[ToolBody], ReadFrom("offers")]
    next: Annotated[None, Field(description="Always null: the list has one page.")]
    unknown: Annotated[list[str], ReadFrom("unknown_tools")]
    """Names in `[[permissions]]` that no tool has."""
