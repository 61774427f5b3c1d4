"""What all bodies have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from torana.memory import SUBJECT_LIMIT
from torana.messages import ID_LIMIT

#: No U+0000; and besides that something that is not blank.
CLEAN = r"^[^\u0000]*$"
TEXT = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"

Id = Annotated[str, Field(max_length=ID_LIMIT, pattern=CLEAN)] | int | None
Subject = Annotated[str, Field(max_length=SUBJECT_LIMIT, pattern=CLEAN)] | None


class Wire(BaseModel):
    """A body with fields in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
