"""What of an MCP server's list of tools may be offered to the model, and in which words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, cast

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for

from torana.tools.mcp.entries import Server
from torana.tools.mcp.hidden import has_hidden, instructs
from torana.tools.mcp.offers import LeftOut, Listing, Offer, visible_name

#: Tools of one server, and characters that their definitions take of each request to the model.
TOOLS_LIMIT = 64
_TOTAL_LIMIT = 64_000
#: One definition: characters of its description and of its schema, parts of that, and how deep they nest.
_DESCRIPTION_LIMIT, _SCHEMA_LIMIT, _PARTS_LIMIT, _DEPTH_LIMIT = 2_000, 16_000, 2_000, 24

_NAME = re.compile(r"[!-~]{1,128}")
#: Words for people in a schema; the model can do without them.
_WORDS = frozenset({"title", "description", "$comment", "examples"})
#: Keys whose values are names of the author's choosing, not words of JSON Schema.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


class _Unfit(Exception):
    """Why a tool is not offered."""


def vet(server: Server, tools: Iterable[Mapping[str, Any]], *, more: bool, taken: frozenset[str]) -> Listing:
    """Choose from the tools of a list, each with ``name``, ``description`` and ``inputSchema``.

    ``more`` says that the list was longer than anybody would read; ``taken`` are names of other tools.
    """
    offers: dict[str, Offer] = {}
    left_out = [LeftOut(tool="…", reason="the list goes on; the rest was not read")] if more else []
    size = 0
    for tool in tools:
        name = str(tool.get("name", ""))
        if not server.wants(name):
            continue
        try:
            offer = _offer(server, name, tool)
            _admit(offer, len(offers), size, taken=taken | offers.keys())
        except _Unfit as error:
            left_out.append(LeftOut(tool=_printable(name), reason=str(error)))
        else:
            offers[offer.name] = offer
            size += offer.size
    return Listing(offers=tuple(offers.values()), left_out=tuple(left_out))


def _admit(offer: Offer, count: int, size: int, *, taken: Set[str]) -> None:
    """Raise ``_Unfit`` where there is no place for it behind so many others of such a size."""
    if offer.name in taken:
        raise _Unfit(f"another tool is called {offer.name}")
    if count >= TOOLS_LIMIT:
        raise _Unfit(f"the server has more than {TOOLS_LIMIT} tools; choose with include")
    if size + offer.size > _TOTAL_LIMIT:
        raise _Unfit(f"the server's definitions have more than {_TOTAL_LIMIT} characters; choose with include")


def _offer(server: Server, name: str, tool: Mapping[str, Any]) -> Offer:
    if not _NAME.fullmatch(name):
        raise _Unfit("its name is not 1 to 128 visible ASCII characters")
    description = str(tool.get("description") or "")
    schema = _schema(tool.get("inputSchema"))
    digest = hashlib.sha256(json.dumps([name, description, schema], sort_keys=True).encode()).hexdigest()
    notes: list[str] = []
    words = (description, *_words(schema))
    suspicious = any(has_hidden(text) or instructs(text) for text in words)
    if suspicious:
        description = f"The tool {name} of the MCP server {server.name}."
        schema = _without_words(schema)
        notes.append("its descriptions hold instructions or hidden characters, and were not taken over")
    elif len(description) > _DESCRIPTION_LIMIT:
        description = f"{description[:_DESCRIPTION_LIMIT]} … (cut)"
        notes.append(f"its description was cut to {_DESCRIPTION_LIMIT} characters")
    if any(has_hidden(text) or instructs(text) for text in (name, *_texts(schema))):
        raise _Unfit("its names or values hold instructions or hidden characters")
    return Offer(
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
    """The schema, where a model's provider can take it. Raises ``_Unfit``."""
    if not isinstance(schema, dict):
        raise _Unfit("it has no schema")
    document = cast("dict[str, Any]", schema)
    if document.get("type") != "object":
        raise _Unfit("its schema is not one of an object")
    _measure(document, document, stack=(), parts=[0])
    if len(json.dumps(document)) > _SCHEMA_LIMIT:
        raise _Unfit(f"its schema has more than {_SCHEMA_LIMIT} characters")
    try:
        validator = cast("Any", validator_for(document, default=Draft202012Validator))
        validator.check_schema(document)
    except SchemaError as error:
        raise _Unfit(f"its schema is none: {error.message[:200]}") from error
    return {key: value for key, value in document.items() if key not in ("$schema", "$id")}


def _measure(
    value: Any, root: Mapping[str, Any], *, stack: tuple[str, ...], parts: list[int], depth: int = 0
) -> None:
    """Walk through it with references put in, as adapters of providers do.

    Raises ``_Unfit`` where that is too much.
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
            raise _Unfit("its schema refers to what is not there")
        found = cast("Mapping[str, Any]", found)[step]
    return found


def _words(schema: Any, *, named: bool = False) -> Iterator[str]:
    """The words for people in a schema."""
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
    """All texts of a schema: names and values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("Sequence[Any]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield key
            yield from _texts(item)


def _printable(name: str) -> str:
    return json.dumps(name[:100])[1:-1]
