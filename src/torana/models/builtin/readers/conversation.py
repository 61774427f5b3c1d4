"""Read questions about earlier messages of the channel."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import NUMBERS, Arguments, wordings

#: Number of messages to request about a topic.
ABOUT_COUNT = 5
#: Number of messages to request for a list of topics.
TOPICS_COUNT = 10
#: Maximum number of messages to request.
MESSAGES_LIMIT = 50

_SPEAKERS = {"i": "user", "my": "user", "you": "assistant", "your": "assistant"}

_HERE = r"(?: (?:in|of) (?:this|our|the) (?:conversation|channel|chat))"

_MESSAGES = wordings(
    r"(?:(?:what|which) (?:was|were)|repeat|quote|show(?: me)?|give me) (?P<who>my|your|the) (?:very )?"
    rf"(?P<order>first|last|previous|latest)(?: (?P<count>\d{{1,2}}|{'|'.join(NUMBERS)}))?"
    r" (?:messages?|questions?|answers?|repl(?:y|ies)|thing (?P<thing>i|you) (?:said|asked|wrote)(?: you| me)?)"
    rf"(?: again)?{_HERE}?"
)
_WHAT_WAS_SAID = wordings(
    r"what (?:did|have) (?P<who>i|you|we) (?P<before>just |first |last )?"
    r"(?:say|said|ask|asked|write|written|answer|answered|reply|replied)"
    r"(?: you| me| to you| to me)?(?P<after>(?: .+)?)"
)
_AGAIN = wordings(
    r"(?:repeat|say) (?:that|it)(?: again)?",
    r"repeat(?: please)?",
    r"repeat what you (?:just )?said",
    r"what",
    r"pardon",
)
_MENTIONED = wordings(
    r"did (?P<who>i|you|we) (?:mention|say something about|talk about|ask about) (?P<about>\S.*)"
)
_TOPICS = wordings(
    r"what (?:did|have) we (?:talk|talked|speak|spoken) about(?: before| earlier| so far| today)?"
)
_WHEN = wordings(
    rf"\A(?: (?:(?:at )?first|at the (?:beginning|start)|last|just now|before|earlier))?{_HERE}?\Z"
)
_ABOUT = wordings(r" about (?:the |my |our |your )?(?P<about>\S.*?)(?: earlier| before)?")


def earlier_messages(message: BuiltinMessage) -> Arguments | None:
    """Read a request for the first or last messages, or those about a topic, of either side."""
    if match := _MESSAGES.fullmatch(message.phrase):
        return _list_arguments(match)
    if match := _WHAT_WAS_SAID.fullmatch(message.phrase):
        return _search_arguments(match)
    if match := _MENTIONED.fullmatch(message.phrase):
        return _build_arguments(match["who"], count=ABOUT_COUNT, about=match["about"])
    if _AGAIN.fullmatch(message.phrase):
        return _build_arguments("you")
    return _build_arguments("we", count=TOPICS_COUNT) if _TOPICS.fullmatch(message.phrase) else None


def _list_arguments(match: re.Match[str]) -> Arguments:
    count = (match["count"] or "1").lower()
    number = int(count) if count.isdecimal() else NUMBERS[count]
    first = match["order"].lower() == "first"
    return _build_arguments(
        match["thing"] or match["who"], first=first, count=max(1, min(number, MESSAGES_LIMIT))
    )


def _search_arguments(match: re.Match[str]) -> Arguments | None:
    if about := _ABOUT.fullmatch(match["after"]):
        return _build_arguments(match["who"], count=ABOUT_COUNT, about=about["about"])
    if match["after"] and not _WHEN.fullmatch(match["after"]):
        return None
    when = f"{match['before']} {match['after']}".lower()
    return _build_arguments(match["who"], first=bool(re.search("first|beginning|start", when)))


def _build_arguments(who: str, *, first: bool = False, count: int = 1, about: str = "") -> Arguments:
    speaker = _SPEAKERS.get(who.lower(), "any")
    return {"speaker": speaker, "order": "first" if first else "last", "count": count, "about": about}
