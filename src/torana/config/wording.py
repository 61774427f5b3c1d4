"""How values, names and settings are put into one-line messages and into the reference."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from torana.config.fields import Allowed
from torana.config.settings import Settings

#: A longer value is cut in a message.
SHOWN_CHARACTERS = 60


def allowed(name: str) -> str:
    """What the setting may be, such as "a whole number from 1 to 65535"."""
    field = Settings.model_fields[name]
    if is_list(name):
        return f"a list of {_length(field)}, each {allowed_item(name)}"
    return allowed_item(name)


def is_list(name: str) -> bool:
    """Whether the setting has several values."""
    return get_origin(Settings.model_fields[name].annotation) is tuple


def allowed_item(name: str) -> str:
    """What each item of a list may be; for any other setting what it may be itself."""
    field = Settings.model_fields[name]
    marks = [mark.words for mark in field.metadata if isinstance(mark, Allowed)]
    return marks[-1] if marks else _by_type(field)


def shown(value: object) -> str:
    """The value as JSON on one line of printable characters, cut where it is long."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, str | Path):
        return _json(_cut(str(value)))
    return _cut(_json(value))


def shown_path(path: Path, *, within: Path | None = None) -> str:
    """The path on one line, from ``within`` where it lies there."""
    text = str(path.relative_to(within) if within and path.is_relative_to(within) else path)
    return text if text.isprintable() else _json(text)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name most like a misspelt one, or None where nothing comes near."""
    matches = difflib.get_close_matches(name[:SHOWN_CHARACTERS], list(names), n=1)
    return matches[0] if matches else None


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _json(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # an integer of more digits than Python is willing to write
        return "the value"
    return text if text.isprintable() else json.dumps(value, default=str)


def _by_type(field: FieldInfo) -> str:
    if field.annotation is bool:
        return "true or false"
    if get_origin(field.annotation) is Literal:
        return f"one of {', '.join(get_args(field.annotation))}"
    return f"a whole number from {_bound(field, 'ge')} to {_bound(field, 'le')}"


def _length(field: FieldInfo) -> str:
    least, most = _bound(field, "min_length"), _bound(field, "max_length")
    return f"{least} to {most}" if least else f"at most {most}"


def _bound(field: FieldInfo, attribute: str) -> int | None:
    # The last counts: a setting's own bound follows that of its kind.
    marks = reversed(field.metadata)
    return next((getattr(mark, attribute) for mark in marks if hasattr(mark, attribute)), None)
