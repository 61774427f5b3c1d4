"""Parse the YAML between two ``---`` lines at the start of a ``SKILL.md``.

The results are only strings, lists and mappings: ``version: 1.10`` stays ``1.10`` and ``name: no`` stays
``no``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

import yaml
from yaml.composer import ComposerError
from yaml.nodes import Node, ScalarNode

from torana.skills.errors import SkillInvalid

#: Maximum number of characters; a few hundred are usual. The limit bounds the time, because YAML is parsed in
#: Python.
LENGTH_LIMIT = 32 * 1024
NESTING_LIMIT = 20
NAMES_LIMIT = 64
NAME_LIMIT = 128

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
Fields: TypeAlias = Mapping[str, Value]

#: Patterns of one name in a text with several names. A YAML list needs no pattern.
WORDS = re.compile(r"[^\s,]+")
PHRASES = re.compile(r"[^,]+")
#: Such as ``Read Bash(git add:*)``: the text in brackets belongs to the name before it.
TOOL_NAMES = re.compile(r"(?:[^\s,()]|\([^()]*\))+")

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_UNQUOTED_COLON = re.compile(r"^([\w-]+):[ \t]+([^\s\"'\[{|>&*!%@`#].*:(?:[ \t].*)?)$", re.MULTILINE)
_NULL_VALUES = frozenset({"", "~", "null"})


def split(text: str) -> tuple[Fields, str]:
    """Return the fields of the front matter and the body after it. The text has Unix line ends.

    Raises ``SkillInvalid`` if the front matter is missing, too long, no valid YAML or no mapping. A value with
    an unquoted ``: `` is not valid YAML, but common: it is read as a string.
    """
    block = _BLOCK.match(text)
    if block is None:
        raise SkillInvalid(
            "SKILL.md has no front matter; start it with a line '---', then `name: …` and `description: …`, "
            "then a line '---'."
        )
    if len(block[1]) > LENGTH_LIMIT:
        raise SkillInvalid(
            f"The front matter of SKILL.md has more than {LENGTH_LIMIT:,} characters; "
            "move text below its closing '---'."
        )
    try:
        fields = _load_leniently(block[1])
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise SkillInvalid(
            f"SKILL.md{_explain(error)}; put values with special characters in quotes."
        ) from error
    if not isinstance(fields, dict):
        raise SkillInvalid(
            "The front matter of SKILL.md is not a mapping; write lines such as `name: my-skill`."
        )
    return fields, text[block.end() :].strip()


def text_of(value: Value | None) -> str | None:
    """Return the value as one line of text, or None if it is empty or not text."""
    if not isinstance(value, str) or value.strip() in _NULL_VALUES:
        return None
    return " ".join(value.split())


def names_of(value: Value | None, *, written: re.Pattern[str] = WORDS) -> tuple[str, ...]:
    """Return the names in a list, or in a string that matches ``written``: each once, in order.

    At most 64; names of more than 128 characters are omitted.
    """
    items: list[Value] = list(written.findall(value)) if isinstance(value, str) else []
    items = value if isinstance(value, list) else items
    names = (text_of(item) for item in items)
    short = (name for name in names if name and len(name) <= NAME_LIMIT)
    return tuple(dict.fromkeys(short))[:NAMES_LIMIT]


def mapping_of(value: Value | None) -> Fields:
    """Return the value if it is a mapping, or a JSON string of a mapping; otherwise an empty mapping."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = _load(value)
        except (yaml.YAMLError, ValueError, OverflowError):
            return {}
    return value if isinstance(value, dict) else {}


class _PlainLoader(yaml.BaseLoader):
    """A restricted YAML loader: scalars stay strings, no tags, no aliases, limited nesting."""

    _nesting = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        mark = parent.start_mark if parent else None
        if self._nesting >= NESTING_LIMIT:
            raise ComposerError(None, None, f"this is nested more than {NESTING_LIMIT} deep", mark)
        self._nesting += 1
        node = super().compose_node(parent, index)
        self._nesting -= 1
        if self.anchors:
            raise ComposerError(None, None, "anchors such as &this are not allowed", mark)
        return node

    def construct_scalar(self, node: ScalarNode) -> str:
        return _well_formed(super().construct_scalar(node))


def _load(source: str) -> Value | None:
    loader = _PlainLoader(source)
    return loader.get_single_data()


def _load_leniently(source: str) -> Value | None:
    try:
        return _load(source)
    except yaml.YAMLError as error:
        quoted = _UNQUOTED_COLON.sub(_quote, source)
        try:
            return _load(quoted)
        except yaml.YAMLError:
            # Raise the first error: the second one's line numbers refer to the generated text.
            raise error from None


def _quote(line: re.Match[str]) -> str:
    return f"{line[1]}: {json.dumps(line[2].rstrip(), ensure_ascii=False)}"


def _well_formed(text: str) -> str:
    """Return text that JSON can encode: surrogate pairs are joined, single surrogates replaced."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _explain(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        # The mark counts from 0, and the line '---' precedes the block.
        return f", line {error.problem_mark.line + 2}: {error.problem}"
    return f", front matter: {' '.join(str(error).split())[:200]}"
