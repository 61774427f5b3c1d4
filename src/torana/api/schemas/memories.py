"""Bodies of memories."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from torana.api.schemas.base import TEXT, Page, RequestBody, Subject, Time, Wire
from torana.errors import FieldFault, InvalidField, MemoryTooLong
from torana.memory import TEXT_LIMIT


def _check_text(text: str) -> str:
    """Return the text without blanks around it. Raises ``MemoryTooLong``, a 413."""
    if len(text) > TEXT_LIMIT:
        detail = f"has {len(text):,} characters, more than {TEXT_LIMIT:,}"
        raise MemoryTooLong(faults=[FieldFault("/text", detail)])
    if not text.strip():
        raise ValueError("must not be blank")
    return text.strip()


_Text = Annotated[
    str,
    AfterValidator(_check_text),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": TEXT_LIMIT, "pattern": TEXT}),
]


def _without_default(schema: dict[str, Any]) -> None:
    """Remove the default of an optional field from the schema: an omitted field changes nothing."""
    del schema["default"]


class MemoryRequest(RequestBody):
    """A memory to store about a user. Unknown fields are ignored."""

    text: Annotated[_Text, Field(description="The text, as a sentence that is clear without context.")]
    subject: Subject | None = None
    """The subject. A memory supersedes the user's earlier memory of the same subject. Case, width and spacing
    do not matter.
    """


class MemoryChange(RequestBody):
    """A change of a memory: at least one of the two fields. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["text"]}, {"required": ["subject"]}]})

    text: Annotated[_Text, Field(description="The new text.", json_schema_extra=_without_default)] = ""
    subject: Annotated[Subject | None, Field(description="The new subject; null for none.")] = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.model_fields_set:
            raise InvalidField("The change is empty; send `text`, `subject` or both.")
        return self


class MemoryBody(Wire):
    """A memory about a user."""

    id: str
    text: str
    subject: Annotated[str | None, BeforeValidator(lambda subject: subject or None)]
    """The subject, case-folded (NFKC)."""
    turn_id: str | None
    """The turn that the memory comes from; null if it comes from no turn."""
    created_at: Time
    superseded_at: Time | None
    superseded_by: Annotated[str | None, Field(description="The current memory that replaced this memory.")]


class MemoryFound(MemoryBody):
    """A memory in a list."""

    score: float | None
    """The score of the match, comparable within this list; null without a query."""


class MemoriesBody(Page[MemoryFound]):
    """A page of memories."""


class MemoryWithHistory(MemoryBody):
    """A memory and the memories that it superseded."""

    history: list[MemoryBody]
    """The superseded memories, newest first, at most 20."""


class ForgottenBody(Wire):
    """The forgotten memories."""

    items: list[MemoryBody]
