"""The default rule of the stand-in: a few fixed phrases, each of which calls one tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torana.testing.openai_server.wire import Answer, Call, ChatRequest, RawReply, Reply

#: Returns the answer to a request. It must be deterministic and fast; it runs in the server's event loop.
Rule = Callable[[ChatRequest], Answer | Reply | RawReply]

#: The gateway's tool that finds the tools that a request does not list.
_SEARCH = "find_tools"


@dataclass(frozen=True, slots=True)
class _Phrase:
    """A phrase that calls ``tool``; the named groups and ``fixed`` are the arguments."""

    tool: str
    pattern: str
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def arguments(self, text: str) -> dict[str, Any] | None:
        """Return the arguments from the text; None if the phrase does not match."""
        match = re.search(self.pattern, text, re.IGNORECASE | re.DOTALL)
        if match is None:
            return None
        groups = {name: value.strip() for name, value in match.groupdict().items() if value}
        return {**self.fixed, **groups}


# The first match wins, so phrases with a whole text come before phrases of a few words.
_PHRASES = (
    _Phrase("remember", r"^\s*remember(?: that)? (?P<text>.+)"),
    _Phrase("query_csv", r"(?:sum|total) of (?P<column>\w+) in .*?csv\W*\n(?P<text>.+)", {"aggregate": "sum"}),
    _Phrase("query_json", r"(?P<path>\$\S*) (?:from|in|of)\b.*?(?P<text>[\[{].*)"),
    _Phrase("count_text", r"count (?:the )?(?:words|lines|characters)\b[^:\n]*[:\n](?P<text>.+)"),
    _Phrase("sort_lines", r"sort (?:the |these )?lines\b[^:\n]*[:\n](?P<text>.+)"),
    _Phrase("unique_lines", r"(?:duplicates?|unique)\b[^:\n]*[:\n](?P<text>.+)"),
    _Phrase("earlier_messages", r"what did i say (?P<order>first|last)", {"speaker": "user", "count": 1}),
    _Phrase("list_skills", r"what can you do|list (?:your |the )?skills|which skills"),
    _Phrase("days_between", r"days (?:between|from) (?P<start>.+?) (?:and|to) (?P<end>[^?]+)"),
    _Phrase("days_between", r"days until (?P<end>[^?]+)", {"start": "today"}),
    _Phrase("current_time", r"what time is it(?: in (?P<place>[^?]+))?"),
    _Phrase(
        "convert_units",
        r"(?P<value>-?\d+(?:\.\d+)?)\s*(?P<from_unit>[^\W\d]\S*) (?:in|to|into) (?P<to_unit>[^\s?]+)",
    ),
    _Phrase("recall", r"what do you (?:know|remember) about (?P<query>[^?]+)"),
    _Phrase("recall", r"what(?:'s| is| was| are) (?P<query>my [^?]+)"),
    _Phrase("calculate", r"(?:what is|calculate|compute) (?P<expression>[-(\d][^?\n]*)"),
)


def fixed_phrases(request: ChatRequest) -> Answer:
    """Call the first offered tool whose phrase matches, and answer with its result.

    A tool that is not offered is searched with ``find_tools``, if that is offered. If there is no tool for the
    text, return a fixed text and the user's text.
    """
    searched = request.called == [_SEARCH]
    if request.results and not searched:
        return "\n".join(request.results)
    schemas = request.schemas
    for phrase in _PHRASES:
        searchable = _SEARCH in schemas and not searched
        arguments = phrase.arguments(request.text) if searchable or phrase.tool in schemas else None
        if arguments is None:
            continue
        if phrase.tool in schemas:
            return [Call(phrase.tool, _convert_types(arguments, schemas[phrase.tool]))]
        return [Call(_SEARCH, {"query": phrase.tool.replace("_", " ")})]
    return f"I am a stand-in and know a few fixed phrases only. You said: {request.text}"


def _convert_types(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types in the tool's schema."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    types = {name: properties.get(name, {}).get("type") for name in arguments}
    return {name: float(value) if types[name] == "number" else value for name, value in arguments.items()}
