"""Format values, names and settings for one-line messages and for the reference."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from torana.config.fields import Allowed
from torana.config.settings import Settings

#: A longer value is truncated in messages.
SHOWN_CHARACTERS = 60


def describe_allowed_values(name: str) -> str:
    """Return the allowed values of the setting, such as "a whole number from 1 to 65535"."""
    field = Settings.model_fields[name]
    if is_list(name):
        return f"a list of {_length(field)}, each {describe_allowed_items(name)}"
    return describe_allowed_items(name)


def is_list(name: str) -> bool:
    """Return whether the setting is a list."""
    return get_origin(Settings.model_fields[name].annotation) is tuple


def describe_allowed_items(name: str) -> str:
    """Return the allowed values of a list's items, or of a setting that is not a list."""
    field = Settings.model_fields[name]
    marks = [mark.words for mark in field.metadata if isinstance(mark, Allowed)]
    return marks[-1] if marks else _by_type(field)


def format_value(value: object) -> str:
    """Return the value as JSON on one line of printable characters, truncated if it is long."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, str | Path):
        return _json(_truncate(str(value)))
    return _truncate(_json(value))


def format_path(path: Path, *, within: Path | None = None) -> str:
    """Return the path on one line, relative to the directory ``within`` if it is inside that directory."""
    text = str(path.relative_to(within) if within and path.is_relative_to(within) else path)
    return text if text.isprintable() else _json(text)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to a misspelt one, or None."""
    matches = difflib.get_close_matches(name[:SHOWN_CHARACTERS], list(names), n=1)
    return matches[0] if matches else None


def _truncate(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _json(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # an integer with more digits than Python converts
        return "the value"
    return text if text.isprintable() else json.dumps(value, default=str)


def _by_type(field: FieldInfo) -> str:
    if field.annotation is bool:
        return "true or false"
    if get_origin(field.annotation) is Literal:
        return f"one of {', '.join(get_args(field.annotation))}"
    return f"a whole number from {_numeric_bound(field, 'ge')} to {_numeric_bound(field, 'le')}"


def _length(field: FieldInfo) -> str:
    least, most = _numeric_bound(field, "min_length"), _numeric_bound(field, "max_length")
    return f"{least} to {most}" if least else f"at most {most}"


def _numeric_bound(field: FieldInfo, attribute: str) -> int | None:
    # The last bound counts: a setting's own bound follows the bound of its type.
    marks = reversed(field.metadata)
    return next((getattr(mark, attribute) for mark in marks if hasattr(mark, attribute)), None)
