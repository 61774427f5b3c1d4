"""Check an MCP server's tool definitions before they are offered to the model."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from importlib import import_module
from typing import Any, cast

from jsonschema import FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for

from torana.tools.mcp.entries import Server
from torana.tools.mcp.listing import LeftOut, Listing, ToolOffer, visible_name
from torana.tools.mcp.sanitize import has_hidden, instructs

#: Maximum number of tools of a server, and of characters that they add to each model request.
TOOLS_LIMIT = 64
_TOTAL_LIMIT = 64_000
#: Limits of one definition: characters of description and schema, number of schema parts, and nesting.
_DESCRIPTION_LIMIT, _SCHEMA_LIMIT, _PARTS_LIMIT, _DEPTH_LIMIT = 2_000, 16_000, 2_000, 24

#: Processor time in seconds for checking a list. A thread cannot be stopped, and one schema may take a second:
#: an old draft compares the values of ``enum`` with each other.
_SECONDS = 3.0

_NAME = re.compile(r"[!-~]{1,128}")
#: Keys of a schema whose values are texts for people; the model does not need them.
_WORDS = frozenset({"title", "description", "$comment", "examples"})
#: Keys whose values are names of the author's choosing, not words of JSON Schema.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


_FORMATS = FormatChecker(formats=())
_parse_expression = cast("Callable[[str], object]", import_module("re._parser").parse)


@_FORMATS.checks("regex", raises=re.error)
def _is_regex(value: object) -> bool:
    """Parse a regular expression without compiling it, which may take ten seconds for 16,000 characters."""
    return not isinstance(value, str) or _parse_expression(value) is not None


class _Unfit(Exception):
    """The reason why a tool is not offered."""


def vet(server: Server, tools: Iterable[Mapping[str, Any]], *, more: bool, taken: frozenset[str]) -> Listing:
    """Select the tools to offer from a list, each with ``name``, ``description`` and ``inputSchema``.

    ``more`` says that the list was too long and was cut; ``taken`` are the names of other tools. Tools that are
    not checked within some seconds of processor time of this thread are left out.
    """
    end = time.thread_time() + _SECONDS
    offers: dict[str, ToolOffer] = {}
    left_out = [LeftOut(tool="…", reason="the list is too long; the rest was not read")] if more else []
    size = 0
    for tool in tools:
        name = str(tool.get("name", ""))
        if not server.is_offered(name):
            continue
        if time.thread_time() > end:
            left_out.append(
                LeftOut(tool="…", reason="the list takes too long to check; the rest was not checked")
            )
            break
        try:
            offer = _offer(server, name, tool)
            _admit(offer, len(offers), size, taken=taken | offers.keys())
        except _Unfit as error:
            printable = json.dumps(name[:100])[1:-1]
            left_out.append(LeftOut(tool=printable, reason=str(error)))
        else:
            offers[offer.name] = offer
            size += offer.size
    return Listing(offers=tuple(offers.values()), left_out=tuple(left_out))


def _admit(offer: ToolOffer, count: int, size: int, *, taken: Set[str]) -> None:
    """Raise ``_Unfit`` if the offer exceeds the limits, after ``count`` tools of ``size`` characters."""
    if offer.name in taken:
        raise _Unfit(f"another tool is called {offer.name}")
    if count >= TOOLS_LIMIT:
        raise _Unfit(f"the server has more than {TOOLS_LIMIT} tools; choose with include")
    if size + offer.size > _TOTAL_LIMIT:
        raise _Unfit(f"the server's definitions have more than {_TOTAL_LIMIT} characters; choose with include")


def _offer(server: Server, name: str, tool: Mapping[str, Any]) -> ToolOffer:
    if not _NAME.fullmatch(name):
        raise _Unfit("its name is not 1 to 128 visible ASCII characters")
    description = str(tool.get("description") or "")
    schema = _schema(tool.get("inputSchema"))
    digest = hashlib.sha256(json.dumps([name, description, schema], sort_keys=True).encode()).hexdigest()
    notes: list[str] = []
    words = (description[:_DESCRIPTION_LIMIT], *_words(schema))  # the rest is not offered
    suspicious = any(has_hidden(text) or instructs(text) for text in words)
    if suspicious:
        description = f"The tool {name} of the MCP server {server.name}."
        schema = _without_words(schema)
        notes.append("its descriptions contain instructions or hidden characters and were removed")
    elif len(description) > _DESCRIPTION_LIMIT:
        description = f"{description[:_DESCRIPTION_LIMIT]} … (cut)"
        notes.append(f"its description was cut to {_DESCRIPTION_LIMIT} characters")
    if any(has_hidden(text) or instructs(text) for text in (name, *_texts(schema))):
        raise _Unfit("its names or values contain instructions or hidden characters")
    return ToolOffer(
        name=visible_name(server.name, name),
        tool=name,
        description=description,
        schema=schema,
        digest=digest,
        idempotent=name in server.idempotent,
        permission="allow" if name in server.allow and not suspicious else "ask",
        notes=tuple(notes),
        withheld=tuple(text[:_DESCRIPTION_LIMIT] for text in words if text) if suspicious else (),
    )


def _schema(schema: Any) -> dict[str, Any]:
    """Return the schema. Raises ``_Unfit`` for a schema that model providers would not accept."""
    if not isinstance(schema, dict):
        raise _Unfit("it has no schema")
    document = cast("dict[str, Any]", schema)
    if document.get("type") != "object":
        raise _Unfit('its schema is not of type "object"')
    _measure(document, document, stack=(), parts=[0])
    if len(json.dumps(document)) > _SCHEMA_LIMIT:
        raise _Unfit(f"its schema has more than {_SCHEMA_LIMIT} characters")
    try:
        validator = cast("Any", validator_for(document, default=Draft202012Validator))
        validator.check_schema(document, format_checker=_FORMATS)
    except SchemaError as error:
        raise _Unfit(f"its schema is invalid: {error.message[:200]}") from error
    except (RecursionError, OverflowError) as error:  # raised by a regular expression in it
        raise _Unfit(f"its schema cannot be checked ({type(error).__name__})") from error
    return {key: value for key, value in document.items() if key not in ("$schema", "$id")}


def _measure(
    value: Any, root: Mapping[str, Any], *, stack: tuple[str, ...], parts: list[int], depth: int = 0
) -> None:
    """Walk through the schema with references resolved, as model providers do.

    Raises ``_Unfit`` if a limit is exceeded.
    """
    parts[0] += 1
    if depth > _DEPTH_LIMIT or parts[0] > _PARTS_LIMIT:
        raise _Unfit(f"its schema has more than {_PARTS_LIMIT} parts, or nests deeper than {_DEPTH_LIMIT}")
    if isinstance(value, list):
        for item in cast("Sequence[Any]", value):
            _measure(item, root, stack=stack, parts=parts, depth=depth + 1)
    if not isinstance(value, dict):
        return
    for key, item in cast("Mapping[str, Any]", value).items():
        if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(item, str):
            if item in stack:
                raise _Unfit("its schema refers to itself")
            target = _target(item, root)
            _measure(target, root, stack=(*stack, item), parts=parts, depth=depth + 1)
        else:
            _measure(item, root, stack=stack, parts=parts, depth=depth + 1)


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else ("#",):
        if not isinstance(found, dict) or step not in found:
            raise _Unfit("its schema has a reference without a target")
        found = cast("Mapping[str, Any]", found)[step]
    return found


def _words(schema: Any, *, named: bool = False) -> Iterator[str]:
    """Yield the texts for people in a schema."""
    if isinstance(schema, list):
        for item in cast("Sequence[Any]", schema):
            yield from _words(item)
    if not isinstance(schema, dict):
        return
    for key, value in cast("Mapping[str, Any]", schema).items():
        if key in _WORDS and not named:
            yield json.dumps(value, ensure_ascii=False)
        else:
            yield from _words(value, named=key in _NAMED and not named)


def _without_words(schema: Any, *, named: bool = False) -> Any:
    if isinstance(schema, list):
        return [_without_words(item) for item in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_words(value, named=key in _NAMED and not named)
        for key, value in cast("Mapping[str, Any]", schema).items()
        if named or key not in _WORDS
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("Sequence[Any]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield key
            yield from _texts(item)
