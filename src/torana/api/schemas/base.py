"""The base classes and the field types of the bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from torana.memory import SUBJECT_LIMIT
from torana.messages import ID_LIMIT

T = TypeVar("T")

#: A text without U+0000, and such a text that is not blank.
CLEAN = r"^[^\u0000]*$"
TEXT = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"


def _check_not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _id_text(value: object) -> str:
    """Return an id as text. An integer of more digits than Python reads is a decimal here."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError("must be a string or an integer")  # noqa: TRY004 - pydantic translates ValueError only
    return str(value)


NotBlank = Annotated[str, AfterValidator(_check_not_blank), Field(json_schema_extra={"pattern": TEXT})]
Subject = Annotated[str, Field(max_length=SUBJECT_LIMIT, pattern=CLEAN)]
Time = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, when_used="json")]
Id = Annotated[
    str,
    Field(max_length=ID_LIMIT),
    BeforeValidator(
        _id_text, json_schema_input_type=Annotated[str, Field(max_length=ID_LIMIT, pattern=CLEAN)] | int
    ),
]


class Wire(BaseModel):
    """A body with fields in camelCase, made from a mapping or from an object with the same attributes.

    The text below a field is its description in the OpenAPI document.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        from_attributes=True,
        serialize_by_alias=True,
    )

    @classmethod
    def from_object(cls, source: object, /, **fields: Any) -> Self:
        """Return the body with these fields; the others are attributes of the object."""
        others = {name: read(source) for name, read in _readers(cls).items() if name not in fields}
        return cls.model_validate(others | fields)


@dataclass(frozen=True)
class ReadFrom:
    """Marks a field of a ``Renamed`` body with its attribute in the object, such as `act.source`."""

    attribute: str


class Renamed(Wire):
    """A body with fields that have other names in the object that it is made from."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, source: Any) -> Any:
        if isinstance(source, dict | Wire):
            return source  # pyright: ignore[reportUnknownVariableType]
        return {name: read(source) for name, read in _readers(cls).items()}


@cache
def _readers(body: type[Wire]) -> Mapping[str, Callable[[object], Any]]:
    """Return the functions that read the fields of a body from an object."""
    return {
        name: attrgetter(next((mark.attribute for mark in field.metadata if isinstance(mark, ReadFrom)), name))
        for name, field in body.model_fields.items()
    }


class RequestBody(Wire):
    """The body of a request. Unknown fields are ignored."""

    model_config = ConfigDict(populate_by_name=False)


class Page(Wire, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: Annotated[
        str | None, Field(description="The value of `after` for the next page; null on the last page.")
    ]
