"""What is wrong with a table of the settings that pydantic has looked at, in words for the operator."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic_core import ErrorDetails

#: What a value of the wrong type should have been, by the beginning of pydantic's name for that.
_TYPES = (
    (("bool_",), "must be true or false"),
    (("string_type",), "must be a text"),
    (("int_",), "must be a whole number"),
    (("float_",), "must be a number"),
    (("tuple_type", "list_type", "set_type", "frozen_set_type"), 'must be a list, such as ["a", "b"]'),
    (("dict_type", "mapping_type", "model_type"), "must be a table"),
    (("missing",), "missing"),
)


def entry_faults(where: str, error: ValidationError, *, of: type[BaseModel]) -> list[str]:
    """A line for each fault: ``where`` the table is, the key, and what it has to be. No value is in it."""
    faults = error.errors(include_input=False, include_url=False)
    return [f"{'.'.join([where, *map(str, fault['loc'])])}: {_told(fault, of)}" for fault in faults]


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a line about an unknown name: which one may have been meant; empty where none comes near."""
    near = difflib.get_close_matches(name[:60], list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _told(fault: ErrorDetails, of: type[BaseModel]) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        known = _keys(of) if len(fault["loc"]) == 1 else ()
        return f"unknown setting{meant(str(fault['loc'][-1]), known)}"
    for beginnings, words in _TYPES:
        if kind.startswith(beginnings):
            return words
    if kind == "value_error":  # a sentence of our own
        return fault["msg"].removeprefix("Value error, ")
    return re.sub(r"^\w+ should ", "must ", fault["msg"])


def _keys(of: type[BaseModel]) -> Iterator[str]:
    """How the keys of the table are written."""
    for name, field in of.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        yield from (choice for choice in choices if isinstance(choice, str))
