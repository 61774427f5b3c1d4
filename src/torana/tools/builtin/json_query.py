"""Query JSON with a path."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

from torana.tools.base import ToolError, tool

#: The maximum lengths of the JSON, of a path, and of the answer.
JSON_LIMIT = 100_000
PATH_LIMIT = 200
ANSWER_LIMIT = 8_000
#: The maximum number of values in the answer.
VALUES_LIMIT = 100
#: The maximum number of conditions in a filter.
CONDITIONS_LIMIT = 8

_QUOTED = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
# A filter with at most one level of brackets; deeper ones are refused below.
_FILTER = re.compile(r"\?[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*")
_LIST = re.compile(r"\[[^\[\]]*,[^\[\]]*\]")
_JUNCTION = re.compile(r"&&|\|\|")


@tool(idempotent=True)
def query_json(text: str, path: str) -> str:
    """Pick values out of JSON with a JSONPath (RFC 9535).

    A single value is returned as it is, several as a JSON array in document order. A path may have one ".."
    and one list such as [0, 2]; a filter such as [?@.price < 10] has at most 8 conditions that compare plain
    paths, one of which may begin with $.

    Args:
        text: The JSON, at most 100,000 characters.
        path: The path, for example "$.items[0].name" or "items[*].price"; "$." may be left out.
    """
    import jsonpath_rfc9535 as jsonpath  # takes 2 MB, so only on demand

    if len(text) > JSON_LIMIT:
        raise ToolError(f"The JSON has {len(text):,} characters; send at most {JSON_LIMIT:,}.")
    query = _to_rooted_path(path)
    _refuse_costly(query)
    try:
        values = [node.value for node in islice(jsonpath.finditer(query, _parse_json(text)), VALUES_LIMIT + 1)]
    except (jsonpath.JSONPathRecursionError, RecursionError):
        raise ToolError("The path or the JSON is nested too deeply; ask for a smaller part.") from None
    except jsonpath.JSONPathError as error:
        raise ToolError(f"The path “{query}” is not valid: {error.args[0]}.") from None
    if not values:
        raise ToolError(f"There is no value at “{query}”; check the names and indexes, which start at 0.")
    return _render_values(values)


def _to_rooted_path(path: str) -> str:
    trimmed = path.strip()
    if not trimmed or len(trimmed) > PATH_LIMIT:
        raise ToolError(f"A path has 1 to {PATH_LIMIT} characters, for example $.items[0].name.")
    if trimmed.startswith("$"):
        return trimmed
    return f"${trimmed}" if trimmed.startswith(("[", ".")) else f"$.{trimmed}"


def _refuse_costly(query: str) -> None:
    """Refuse a path that may need more steps than the product of the document's values and the path's parts.

    The library follows every path to its end, again for each value that a filter checks, and match() and
    search() run regular expressions from the query: both could take hours. Two paths from the root in a filter
    could compare large parts of the document for each value.
    """
    plain = _QUOTED.sub("''", query)
    outside, filters = _FILTER.sub("", plain), _FILTER.findall(plain)
    if re.search(r"\b(?:match|search)\(", plain):
        raise ToolError("match() and search() are not available; compare with == or pick the values first.")
    if any(part in inside[1:] for inside in filters for part in ("?", "..", "*", ",", ":")):
        raise ToolError("A filter compares plain paths, as in [?@.price < 10]; do not nest filters.")
    if any(inside.count("$") > 1 or len(_JUNCTION.findall(inside)) >= CONDITIONS_LIMIT for inside in filters):
        raise ToolError(
            f"A filter has at most {CONDITIONS_LIMIT} conditions and one path from $; ask for less."
        )
    if outside.count("..") > 1 or len(_LIST.findall(outside)) > 1:
        raise ToolError(
            "A path can have one “..” and one list such as [0, 2]; replace further ones with names or an index."
        )


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ToolError(
            f"This is not JSON: {error.msg} in line {error.lineno}, column {error.colno}; correct it there."
        ) from None
    except ValueError as error:
        raise ToolError(f"This is not JSON: {error}.") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _render_values(values: list[object]) -> str:
    shown = values[:VALUES_LIMIT]
    text = _json(shown) if len(shown) > 1 else shown[0] if isinstance(shown[0], str) else _json(shown[0])
    note = ""
    if len(values) > VALUES_LIMIT:
        note = f"\n(There are more; these are the first {VALUES_LIMIT}.)"
    if len(text) > ANSWER_LIMIT:
        note = f"\n(Cut after {ANSWER_LIMIT:,} characters; ask for a smaller part.)"
    # JSON escapes can contain U+0000 and single surrogates, which the database cannot store.
    return text[:ANSWER_LIMIT].replace("\0", "�").encode("utf-8", "replace").decode("utf-8") + note


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
