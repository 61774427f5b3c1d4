"""Explicit tool calls: ``use <tool>``, ``use <tool> {"a": 1}`` or ``<tool>(a=1, "b")``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.tools import ToolDefinition

from torana.models.builtin.readers.base import Arguments

# An unclosed brace is matched too, so that the reply can explain the error. Possessive quantifiers avoid
# quadratic backtracking over blanks.
_USE = re.compile(
    r"\s*+(?P<use>use)\s++`?(?P<tool>[\w-]++)`?\s*+:?\s*+(?P<arguments>\{.*\}|\{.*)?[\s.!]*",
    re.IGNORECASE | re.DOTALL,
)
_CALL = re.compile(
    r"\s*(?P<use>use\s+)?`?(?P<tool>[\w-]+)\((?P<arguments>.*)\)`?[\s.!]*", re.IGNORECASE | re.DOTALL
)
_NAME = re.compile(r"\s*(?:(\w+)\s*=\s*)?")
_COMMA = re.compile(r"\s*(?:,|\Z)\s*")
_SINGLE_QUOTED = re.compile(r"'((?:\\.|[^'\\])*)'")
_CONSTANTS = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class ExplicitCall:
    """An available tool and its arguments."""

    tool: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Unclear:
    """An explanation of missing or invalid arguments of a call."""

    text: str


def read_call(text: str, tools: Mapping[str, ToolDefinition]) -> ExplicitCall | Unclear | None:
    """Return the explicit call in a message; None if it names no available tool."""
    match = _USE.fullmatch(text) or _CALL.fullmatch(text)
    tool = tools.get(match["tool"]) if match else None
    if match is None or tool is None:
        return None
    try:
        arguments = _arguments((match["arguments"] or "").strip(), list(_properties(tool)))
    except (ValueError, RecursionError) as error:
        return Unclear(f"I cannot read the arguments of {tool.name}: {error}. {_usage(tool)}")
    missing = [name for name in required_arguments(tool) if name not in arguments]
    if missing or not arguments.keys() <= _properties(tool).keys():
        return Unclear(_usage(tool))
    return ExplicitCall(tool.name, arguments)


def called_name(text: str) -> str | None:
    """Return the tool name of a message that can only be a call, whether the tool exists or not.

    "use it" and "f(x)" are ambiguous: a call has ``_`` in its name, or both "use" and arguments.
    """
    match = _USE.fullmatch(text) or _CALL.fullmatch(text)
    if match is None or not ("_" in match["tool"] or (match["use"] and match["arguments"])):
        return None
    return match["tool"]


def required_arguments(tool: ToolDefinition) -> tuple[str, ...]:
    return tuple(tool.parameters_json_schema.get("required", ()))


def _properties(tool: ToolDefinition) -> Mapping[str, Any]:
    return tool.parameters_json_schema.get("properties", {})


def _usage(tool: ToolDefinition) -> str:
    needed = ", ".join(f'"{name}": …' for name in required_arguments(tool))
    others = ", ".join(f'"{name}"' for name in _properties(tool) if name not in required_arguments(tool))
    return (
        f"Write it as use {tool.name}{' {' + needed + '}' if needed else ''}"
        f"{f', optionally with {others}' if others else ''}; each value as in JSON: a number, true, or a text "
        "in double quotes."
    )


def _arguments(text: str, positional: list[str]) -> dict[str, Any]:
    if _UNSTORABLE.search(text):
        raise ValueError(
            "the escapes \\u0000 and \\ud800 to \\udfff are not supported; write the character itself"
        )
    if text.startswith("{"):
        return cast("dict[str, Any]", _DECODER.decode(text))
    return _positional_arguments(text, positional)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
# Escapes of U+0000 and of surrogates: databases accept neither U+0000 nor lone surrogates.
_UNSTORABLE = re.compile(r"\\u(?:0000|d[89a-f])", re.IGNORECASE)


def _positional_arguments(text: str, positional: list[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    position = 0
    while position < len(text):
        name = _NAME.match(text, position)
        value, position = _value(text, name.end() if name else position)
        key = name[1] if name and name[1] else next(iter(positional), "")
        comma = _COMMA.match(text, position)
        if not comma:
            raise ValueError("there is no comma between two values")
        if not key:
            raise ValueError("there are more values than arguments")
        if key in arguments:
            raise ValueError(f"{key} has two values")
        arguments[key] = value
        positional = [other for other in positional if other != key]
        position = comma.end()
    return arguments


def _value(text: str, position: int) -> tuple[Any, int]:
    if quoted := _SINGLE_QUOTED.match(text, position):
        return re.sub(r"\\(.)", r"\1", quoted[1]), quoted.end()
    for word, value in _CONSTANTS.items():
        if text.startswith(word, position):
            return value, position + len(word)
    return _DECODER.raw_decode(text, position)
