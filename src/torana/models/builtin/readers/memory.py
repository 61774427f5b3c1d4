"""Read requests to remember, recall and forget."""

from __future__ import annotations

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, wordings

_KEEP = r"(?:remember|note|make a note|keep in mind|don't forget|do not forget|memori[sz]e)"
_NOTED = (wordings(rf"{_KEEP}: (?P<text>.+)"), wordings(rf"{_KEEP} (?P<text>to .+)"))
_STATED = (
    wordings(rf"{_KEEP} that (?P<text>.+)"),
    wordings(rf"{_KEEP} (?P<text>(?:i|i'm|i've|i'd|we|our|my) .+)"),
    wordings(
        r"(?P<text>(?:i|i'm|i've|my) .+), (?:please )?(?:remember|keep|note) (?:that|this|it)(?: in mind)?"
    ),
)
_KEEPING = ("remember", "note", "memori")
# "Remember that thing" and "remember my name" contain no statement.
_STATEMENT = wordings(
    r"(?!(?:when|what|who|where|why|how|if|whether)\b)(?:.+ )?"
    r"(?:am|is|are|was|were|has|have|had|can|will|like|love|hate|prefer|live|work|want|need|use|speak)s?(?:n't)?\b.*",
    r".+'(?:s|m|re|ve|d)\b.*",
)


def remember(message: BuiltinMessage) -> Arguments | None:
    """Read a statement to remember, and the subject for which a newer statement replaces it."""
    noted, stated = first_match(_NOTED, message.phrase), first_match(_STATED, message.phrase)
    match = noted or (stated if stated and _STATEMENT.fullmatch(stated["text"]) else None)
    asks = message.text.endswith("?") and message.text.lower().startswith(_KEEPING)
    return {"text": match["text"], "subject": _subject(match["text"])} if match and not asks else None


# A person has one of each, so a newer statement replaces an older one. "My sister is tall" is not one of these:
# other statements about her stay true.
_SUBJECTS = (
    (wordings(r"my (?P<of>[\w' -]{2,40}?) (?:is|are) (?:called|named) .+"), "my {of}'s name"),
    (wordings(r"my (?P<of>[\w' -]{2,40}?)'s name is .+"), "my {of}'s name"),
    (wordings(r"(?:i am|i'm) called .+", r"my name is .+", r"my name's .+"), "my name"),
    (wordings(r"my favou?rite (?P<of>[\w' -]{2,40}?) (?:is|are) .+"), "my favourite {of}"),
    (wordings(r"i (?:now )?live (?:in|at|on|near) .+"), "where I live"),
    (wordings(r"i (?:now )?work (?:at|for) .+"), "where I work"),
    (wordings(r"(?:i am|i'm) \d{1,3}(?: years old)?", r"my age is .+"), "my age"),
    (wordings(r"i was born on .+"), "my birthday"),
    (wordings(r"my (?P<of>birthday|job|address|employer|home town|time ?zone) is .+"), "my {of}"),
    (wordings(r"my (?P<of>e-?mail|phone)(?: address| number)? is .+"), "my {of}"),
)


def _subject(text: str) -> str:
    for pattern, subject in _SUBJECTS:
        if match := pattern.fullmatch(text):
            return subject.format(**{name: said.lower() for name, said in match.groupdict().items()})
    return ""


_EVERYTHING = wordings(
    r"what (?:do you|can you) (?:know|remember|recall) about me",
    r"what (?:do you remember|have you remembered)(?: about me)?",
    r"(?:list|show(?: me)?) (?:all )?(?:my|your) memories",
)
_RECALL = (
    wordings(r"what (?:do you|can you) (?:know|remember|recall) about (?P<query>.+)"),
    wordings(r"(?:do you (?:remember|know|recall) )?what (?:did i tell|i told) you about (?P<query>.+)"),
    wordings(r"(?:do you (?:remember|know|recall)|recall) (?:about )?my (?P<query>.+)"),
    wordings(r"(?:what|who|when|where)(?:'s| is| are| was) my (?P<query>[\w' -]+)"),
    wordings(r"(?:what|which) (?P<query>[\w' -]+) do i (?:like|prefer|have)(?: best| most)?"),
    wordings(r"where do (?P<query>i live|i work)"),
    wordings(r"(?:what|who) am (?P<query>i called)"),
    wordings(r"when was (?P<query>i born)"),
)
_OWN = wordings(r"\A(?:my|our|the) ")
# The words for asking a name, and insignificant words: a matching memory must contain all other words.
_CALLED = wordings(r"(?:\bi )?\b(?:called|named)\Z")
_FILLING = wordings(r"\b(?:a|an|the|my|our|is|are|was|of|to|in|on|at|for|and|with|from)\b")


def recall(message: BuiltinMessage) -> Arguments | None:
    """Read a question about the user; an empty query means all memories."""
    if _EVERYTHING.fullmatch(message.phrase):
        return {"query": ""}
    match = first_match(_RECALL, message.phrase)
    return {"query": _telling(match["query"]), "every_word": True} if match else None


def _telling(query: str) -> str:
    """Return the significant words of a query, or the query if it has none."""
    told = _FILLING.sub(" ", _CALLED.sub("name", query))
    return " ".join(told.split()) or query


_FORGET = (
    wordings(
        r"(?:delete|erase|forget) (?:what (?:you know|i said|i told you)|the memory) (?:about|of) (?P<query>.+)"
    ),
    wordings(r"(?:forget|stop remembering)(?: about| that)? (?P<query>.+)"),
)
# Everything at once, or no named thing.
_UNNAMED = wordings(
    r"(?:it|this|that|everything|all|anything|me|us|you|what|about|your|previous|earlier)\b.*", r"(?:to|how) .+"
)


def forget(message: BuiltinMessage) -> Arguments | None:
    """Read a request to forget one named thing."""
    match = first_match(_FORGET, message.phrase)
    if not match or _UNNAMED.fullmatch(match["query"]):
        return None
    return {"query": _OWN.sub("", match["query"])}
