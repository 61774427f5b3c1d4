"""Read queries on pasted JSON and CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, wordings

_GET = r"(?:(?:get|query|extract|pick|find|select|read|list|show(?: me)?|what(?:'s| is| are)) )?"
_IN_JSON = r" (?:from|in|of)(?: (?:this|the|the following))?(?: (?:json|object|array|document|data))*"
_JSON = (
    wordings(rf"{_GET}(?P<path>\$.*){_IN_JSON}"),
    wordings(rf"{_GET}(?:the value (?:of|at) )?(?P<path>\S+){_IN_JSON}"),
)
_PATH = re.compile(r"\$.*|[\w-]+(?:\.[\w*-]+|\[[^\]]*\])*|(?:\[[^\]]*\])+(?:\.[\w*-]+|\[[^\]]*\])*")


def query_json(message: BuiltinMessage) -> Arguments | None:
    """Read a path and a pasted JSON object or array."""
    text = message.pasted.strip()
    if (text[:1], text[-1:]) not in (("{", "}"), ("[", "]")):
        return None
    match = first_match(_JSON, message.instruction)
    return {"text": text, "path": match["path"]} if match and _PATH.fullmatch(match["path"]) else None


_AGGREGATES = {
    "sum": "sum",
    "total": "sum",
    "average": "mean",
    "mean": "mean",
    "minimum": "min",
    "smallest": "min",
    "lowest": "min",
    "maximum": "max",
    "largest": "max",
    "highest": "max",
}
_SHOW = (
    r"(?:only )?(?:(?:show(?: me)?|get|list|find|select|what(?:'s| is)|which is) )?(?:only )?(?:all )?(?:the )?"
)
_TABLE = r"(?: (?:in|from|of)(?: (?:this|the|the following))?(?: (?:csv|table|data|spreadsheet|file))*)?"
_COLUMN = r"[\w-][\w -]{0,58}"
_BY = rf"(?: (?:by|per|for each|grouped by) (?P<group_by>{_COLUMN}?))?"
_WHERE = r"(?: where (?P<where>.+?))?"
_CSV = (
    wordings(rf"(?:how many rows(?: are there)?|count(?: the)? rows){_BY}{_WHERE}{_TABLE}"),
    wordings(
        rf"{_SHOW}(?P<how>{'|'.join(_AGGREGATES)})(?: of)?(?: the)? (?P<column>{_COLUMN}?){_BY}{_WHERE}{_TABLE}"
    ),
    wordings(rf"{_SHOW}(?P<rows>rows|lines|records) where (?P<where>.+?){_TABLE}"),
    wordings(rf"{_SHOW}columns? (?P<select>.+?){_WHERE}{_TABLE}"),
)
_CONDITION = wordings(rf"{_COLUMN} ?(?:!=|<=|>=|=|<|>| contains ) ?\S.{{0,100}}")


def query_csv(message: BuiltinMessage) -> Arguments | None:
    """Read a query on a pasted table of at least two lines, with a separator in the first."""
    header, newline, _ = message.pasted.partition("\n")
    if not newline or not re.search(r"[,;\t|]", header):
        return None
    match = first_match(_CSV, message.instruction)
    return _question(message.pasted, match.groupdict()) if match else None


def _question(text: str, groups: Mapping[str, str | None]) -> Arguments | None:
    if (where := groups.get("where")) and not _CONDITION.fullmatch(where):
        return None
    question: dict[str, str | list[str]] = {"text": text}
    for name in ("where", "column", "group_by"):
        if value := groups.get(name):
            question[name] = value
    if select := groups.get("select"):
        question["select"] = re.split(r", | and ", select)
    elif "rows" not in groups:
        how = groups.get("how")
        question["aggregate"] = _AGGREGATES[how.lower()] if how else "count"
    return question
