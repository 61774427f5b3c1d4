"""Read requests to fetch a page or to search the web."""

from __future__ import annotations

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, groups_of, wordings

_URL = r"<?(?P<url>https?://[^\s<>\"]+)>?"
web_fetch = groups_of(
    wordings(
        rf"(?:fetch|open|read|get|visit|load|show)(?: me)?"
        rf"(?: the)?(?: (?:web ?)?(?:page|site|address|url|text))?(?: (?:at|of|from))? {_URL}"
    ),
    wordings(rf"what(?:'s| is| does)(?: (?:on|at))? {_URL}(?: say)?"),
)
_SEARCH = (
    wordings(
        r"(?:search|google|look)(?: (?:on|in))?(?: the)? (?:web|internet|net|online)"
        r"(?: for| about)?:? (?P<query>.+)"
    ),
    wordings(r"(?:find|look up|search(?: for)?) (?P<query>.+) (?:on|in) the (?:web|internet|net)"),
)


def web_search(message: BuiltinMessage) -> Arguments | None:
    """Read a request that explicitly asks for a web search."""
    match = first_match(_SEARCH, message.phrase)
    return {"query": match["query"].strip('"')} if match else None
