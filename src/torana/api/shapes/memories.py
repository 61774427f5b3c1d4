"""Bodies of memories."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, ConfigDict, Field

from torana.api.shapes.base import CLEAN, TEXT, Subject, Wire
from torana.memory import TEXT_LIMIT


class MemoryRequest(Wire):
    """Something to remember about a user. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    text: Annotated[
        str,
        Field(
            description="What to remember, as a sentence that can be read alone.",
            min_length=1,
            max_length=TEXT_LIMIT,
            pattern=TEXT,
        ),
    ]
    subject: Annotated[
        Subject,
        Field(
            description="What it is about, where a newer statement is to supersede an older one; compared "
            "without regard to case, width and spacing."
        ),
    ] = None


def _without_default(schema: dict[str, Any]) -> None:
    """For a field that may be left out, but then has no value."""
    del schema["default"]


class MemoryChange(Wire):
    """What to change of a memory: at least one of the two. Unknown fields are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": {"pattern": CLEAN},
            "anyOf": [{"required": ["text"]}, {"required": ["subject"]}],
        }
    )

    text: Annotated[
        str,
        Field(
            description="What is so instead.",
            min_length=1,
            max_length=TEXT_LIMIT,
            pattern=TEXT,
            json_schema_extra=_without_default,
        ),
    ] = ""
    subject: Annotated[Subject, Field(description="What it is about; null for nothing.")] = None


class MemoryBody(Wire):
    """Something that is remembered about a user."""

    id: str
    text: str
    subject: Annotated[str | None, Field(description="What it is about, case-folded (NFKC).")]
    turn_id: Annotated[str | None, Field(description="The turn it was said in; null where in none.")]
    created_at: AwareDatetime
    superseded_at: AwareDatetime | None
    superseded_by: Annotated[str | None, Field(description="The memory that stands in its place now.")]


class MemoryFound(MemoryBody):
    """A memory in a list."""

    score: Annotated[
        float | None,
        Field(description="How well it fits the query, within this list only; null without a query."),
    ]


class MemoriesBody(Wire):
    """A page of memories."""

    items: list[MemoryFound]
    next: Annotated[str | None, Field(description="`after` for the next page.")]


class MemoryWithHistory(MemoryBody):
    """A memory and what it superseded."""

    history: Annotated[list[MemoryBody], Field(description="The latest first, at most 20.")]


class ForgottenBody(Wire):
    """What was forgotten."""

    items: list[MemoryBody]
