"""Describe invalid settings, one line for each: the place, the problem and the allowed values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from torana.config.formatting import (
    describe_allowed_items,
    describe_allowed_values,
    format_value,
    is_list,
    nearest,
)
from torana.config.settings import PREFIX, SECRETS, TABLES, Settings, variable
from torana.config.sources import Source
from torana.permissions import RULE_KEYS

T = TypeVar("T")

#: The maximum number of listed faults; more are only counted.
LISTED = 20

#: The start of a line about a setting, or about a key in a table.
_BEGINS = re.compile(rf"(?:{PREFIX}(?P<variable>[A-Z_]+)|(?P<setting>[a-z_]+)(?P<within>\.[^:]*)?): ")

_NO_RULE = "not a table"

#: Variables that Kubernetes sets in every pod for a service named ``torana``, besides ``TORANA_PORT``.
_SERVICE_LINK = re.compile(rf"{PREFIX}(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")


def fault_lines(error: ValidationError, *, sources: Sequence[Source]) -> list[str]:
    """Return a line for each of the first faults, in the order of the settings."""
    found = error.errors(include_url=False, include_context=False)
    # If another setting is invalid, pydantic skips the defaults that depend on other settings.
    faults = [fault for fault in found if fault["type"] != "default_factory_not_called"]
    return _list_with_limit(faults, lambda fault: _line(fault, sources))


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return a line for each unknown variable with the gateway's prefix, such as ``TORANA_PROT``."""
    # `torana chat` reads the token of a remote gateway itself.
    known = {variable(name) for name in (*Settings.model_fields, "config", "chat_token")}
    strangers = sorted(name for name in names if name.upper().startswith(PREFIX) and name not in known)
    listed = [name for name in strangers if not _SERVICE_LINK.fullmatch(name)]
    return _list_with_limit(listed, _unknown_variable)


def where(name: str, *, sources: Sequence[Source]) -> str:
    """Return the start of a message about the setting: its place and its name there."""
    source = source_of(name, sources=sources)
    return f"{source.place(name)}{source.label(name)}" if source else variable(name)


def source_of(name: str, *, sources: Sequence[Source]) -> Source | None:
    """Return the strongest source that has the setting, or None if the default applies."""
    return next((source for source in sources if name in source.values), None)


def add_origin(line: str, *, sources: Sequence[Source]) -> str:
    """Add the place to a line that begins with a setting: ``TORANA_TOOLS: …`` or ``mcp.time.command: …``.

    The setting gets its name in that source. Any other line is returned unchanged.
    """
    begins = _BEGINS.match(line)
    name = (begins["variable"] or begins["setting"]).lower() if begins else ""
    source = source_of(name, sources=sources)
    if begins is None or source is None:
        return line
    if begins["within"]:
        label = "" if source.label(name) == name else f"{source.label(name)}: "
        return f"{source.place(name + begins['within'])}{label}{line}"
    return f"{source.place(name)}{source.label(name)}: {line[begins.end() :]}"


def _list_with_limit(items: Sequence[T], write: Callable[[T], str]) -> list[str]:
    rest = len(items) - LISTED
    return [*map(write, items[:LISTED]), *([f"and {rest} more"] if rest > 0 else [])]


def _line(fault: ErrorDetails, sources: Sequence[Source]) -> str:
    name = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
        return _unknown(name, sources)
    if name == "permissions" and len(fault["loc"]) > 1:
        return f"{where(name, sources=sources)}: rule {int(fault['loc'][1]) + 1}: {_wrong_rule(fault)}"
    return f"{where(name, sources=sources)}: {_wrong(name, fault)}"


def _wrong_rule(fault: ErrorDetails) -> str:
    key = ".".join(str(part) for part in fault["loc"][2:])
    match fault["type"]:
        case "missing":
            return f"{key} is missing"
        case "unexpected_keyword_argument":
            near = nearest(key, RULE_KEYS)
            return f"unknown {format_value(key)}" + (f'; did you mean "{near}"?' if near else "")
        case "literal_error":
            return f"{key} = {format_value(fault['input'])} is not allow, ask or deny"
        case _:
            return (
                f"{key} = {format_value(fault['input'])} is not a text of 1 to 256 characters"
                if key
                else _NO_RULE
            )


def _unknown(name: str, sources: Sequence[Source]) -> str:
    source = source_of(name, sources=sources)
    near = _nearest_setting(name)
    hint = f'; did you mean "{near}"?' if near else ""
    return f"{source.place(name) if source else ''}unknown setting {format_value(name)}{hint}"


def _unknown_variable(name: str) -> str:
    near = _nearest_setting(name)
    hint = f'; did you mean "{variable(near)}"?' if near else ""
    return f"unknown variable {format_value(name)}{hint}"


def _nearest_setting(name: str) -> str | None:
    return nearest(name.lower().removeprefix(PREFIX.lower()).replace("-", "_"), Settings.model_fields)


def _no_json(name: str, text: str) -> str:
    if name not in TABLES | {"permissions"} and not (is_list(name) and text.lstrip().startswith("[")):
        return ""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return str(error)
    except (ValueError, RecursionError):
        pass
    return ""


def _wrong(name: str, fault: ErrorDetails) -> str:
    value: object = fault["input"]
    if value == "":
        return f"empty; remove it, or make it {describe_allowed_values(name)}"
    if name == "port" and isinstance(value, str) and value.startswith("tcp://"):
        return (
            f"{format_value(value)} was set by Kubernetes for a service; "
            "set enableServiceLinks: false in the pod"
        )
    if isinstance(value, str) and (fault_of_json := _no_json(name, value)):
        return f"no valid JSON: {fault_of_json}"
    words = describe_allowed_values(name) if len(fault["loc"]) == 1 else describe_allowed_items(name)
    return f"{'the value' if name in SECRETS | TABLES else format_value(value)} is not {words}"
