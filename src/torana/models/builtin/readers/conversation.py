"""What was said earlier in this channel."""

from __future__ import annotations

import re

from torana.models.builtin.message import Message
from torana.models.builtin.readers.base import NUMBERS, Arguments, wordings

#: How many messages about a topic are asked for.
ABOUT_COUNT = 5
#: How many messages are asked for to tell what a conversation was about.
TOPICS_COUNT = 10
#: How many messages are asked for at most.
MESSAGES_LIMIT = 50

_SPEAKERS = {"i": "user", "my": "user", "you": "assistant", "your": "assistant"}

_MESSAGES = wordings(
    r"(?:(?:what|which) (?:was|were)|repeat|quote|show(?: me)?|give me) (?P<who>my|your|the) (?:very )?"
    rf"(?P<order>first|last|previous|latest)(?: (?P<count>\d{{1,2}}|{'|'.join(NUMBERS)}))?"
    r" (?:messages?|questions?|answers?|repl(?:y|ies)|thing (?P<thing>i|you) (?:said|asked|wrote)(?: you| me)?)"
    r"(?: again)?(?: (?:in|of) this (?:conversation|channel|chat))?"
)
_SAID = wordings(
    r"what (?:did|have) (?P<who>i|you|we) (?P<before>just |first |last )?"
    r"(?:say|said|ask|asked|write|written|answer|answered|reply|replied)"
    r"(?: you| me| to you| to me)?(?P<after>(?: .+)?)"
)
_AGAIN = wordings(r"(?:repeat|say) that(?: again)?", r"repeat what you (?:just )?said")
_TOPICS = wordings(
    r"what (?:did|have) we (?:talk|talked|speak|spoken) about(?: before| earlier| so far| today)?"
)
_WHEN = wordings(r"\A (?:(?:at )?first|at the (?:beginning|start)|last|just now|before|earlier)?\Z")
_ABOUT = wordings(r" about (?:the |my |our |your )?(?P<about>\S.*?)(?: earlier| before)?")


def earlier_messages(message: Message) -> Arguments | None:
    """Questions for the first or last messages, or for those about something, of either side."""
    if match := _MESSAGES.fullmatch(message.phrase):
        return _listed(match)
    if match := _SAID.fullmatch(message.phrase):
        return _said(match)
    if _AGAIN.fullmatch(message.phrase):
        return _asked("you")
    return _asked("we", count=TOPICS_COUNT) if _TOPICS.fullmatch(message.phrase) else None


def _listed(match: re.Match[str]) -> Arguments:
    count = (match["count"] or "1").lower()
    number = int(count) if count.isdecimal() else NUMBERS[count]
    first = match["order"].lower() == "first"
    return _asked(match["thing"] or match["who"], first=first, count=max(1, min(number, MESSAGES_LIMIT)))


def _said(match: re.Match[str]) -> Arguments | None:
    if about := _ABOUT.fullmatch(match["after"]):
        return _asked(match["who"], count=ABOUT_COUNT, about=about["about"])
    if match["after"] and not _WHEN.fullmatch(match["after"]):
        return None
    when = f"{match['before']} {match['after']}".lower()
    return _asked(match["who"], first=bool(re.search("first|beginning|start", when)))


def _asked(who: str, *, first: bool = False, count: int = 1, about: str = "") -> Arguments:
    speaker = _SPEAKERS.get(who.lower(), "any")
    return {"speaker": speaker, "order": "first" if first else "last", "count": count, "about": about}
