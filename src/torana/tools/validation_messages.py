"""Read the values of a settings table, and describe pydantic validation errors in it for the operator."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic_core import ErrorDetails

#: The expected type of a value, by the prefix of pydantic's error type.
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
    """Return a line for each fault: the table, the key and the expected value. Lines contain no values."""
    faults = error.errors(include_input=False, include_url=False)
    return [f"{'.'.join([where, *map(str, fault['loc'])])}: {_describe_fault(fault, of)}" for fault in faults]


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a similar name, or nothing."""
    near = difflib.get_close_matches(name[:60], list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def map_texts(value: Any, place: str, change: Callable[[str, str], Any]) -> Any:
    """Return the value of a setting with each text in it changed; ``change`` receives place and text."""
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {key: map_texts(item, f"{place}.{key}", change) for key, item in entries}
    if isinstance(value, list):
        return [map_texts(item, place, change) for item in cast("list[Any]", value)]
    return change(place, value) if isinstance(value, str) else value


def _describe_fault(fault: ErrorDetails, of: type[BaseModel]) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        known = _keys(of) if len(fault["loc"]) == 1 else ()
        return f"unknown setting{suggest_name(str(fault['loc'][-1]), known)}"
    for beginnings, words in _TYPES:
        if kind.startswith(beginnings):
            return words
    if kind == "value_error":  # the text of a validator of the gateway
        return fault["msg"].removeprefix("Value error, ")
    return re.sub(r"^\w+ should ", "must ", fault["msg"])


def _keys(of: type[BaseModel]) -> Iterator[str]:
    for name, field in of.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        yield from (choice for choice in choices if isinstance(choice, str))
