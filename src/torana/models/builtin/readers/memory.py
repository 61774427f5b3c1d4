"""Read requests to remember, recall and forget."""

from __future__ import annotations

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, wordings

_KEEP = r"(?:remember|note|take a note|make a note|keep in mind|don't forget|do not forget|memori[sz]e)"
_NOTED = (wordings(rf"{_KEEP}: (?P<text>.+)"), wordings(rf"{_KEEP} (?P<text>to .+)"))
_STATED = (
    wordings(rf"{_KEEP} that (?P<text>.+)"),
    wordings(rf"{_KEEP} (?P<text>(?:i|i'm|i've|i'd|we|our|my|the) .+)"),
    wordings(
        r"(?P<text>(?:i|i'm|i've|my) .+), (?:please )?(?:remember|keep|note) (?:that|this|it)(?: in mind)?"
    ),
)
_KEEPING = ("remember", "note", "memori")
_NO_QUESTION = r"(?!(?:when|what|who|where|why|how|if|whether)\b)"
# "Remember that thing" and "remember my name" contain no statement.
_STATEMENT = wordings(
    rf"{_NO_QUESTION}(?:.+ )?"
    r"(?:am|is|are|was|were|has|have|had|can|will|like|love|hate|prefer|live|work|want|need|use|speak)s?"
    r"(?:n't)?\b.*",
    r"(?:i|we|our|my|his|her|their) [\w'-]+ [\w'-]+ .+",
    # "The plumber comes on Tuesday", "I parked on level 3".
    rf"{_NO_QUESTION}(?:[\w'-]+ ){{1,4}}"
    r"(?:\w{2,}ed|(?:come|go|open|close|start|end|leave|arrive|cost|take|begin)s?|goes) .+",
    r".+'(?:s|m|re|ve|d)\b.*",
)


# Lasting facts about the user, without "remember".
_FACT = (
    wordings(r"(?P<text>my name(?:'s| is) [\w' -]{1,60})"),
    wordings(r"(?P<text>(?:i am|i'm) called [\w' -]{1,60})"),
    wordings(r"(?P<text>(?:i am|i'm) (?:allergic to|intolerant to|afraid of) [\w', -]{1,80})"),
    wordings(r"(?P<text>(?:i am|i'm) (?:an? )?(?:vegetarian|vegan|diabetic|coeliac|celiac|left-handed))"),
    wordings(r"(?P<text>(?:i am|i'm) \d{1,3} years old)"),
    wordings(
        r"(?P<text>i (?:now )?(?:live in|live at|work at|work for|work as|was born (?:on|in)) [\w', -]{1,80})"
    ),
    wordings(
        r"(?P<text>i (?:really )?(?:like|love|hate|prefer|(?:don't|do not|can't) (?:like|eat|drink|stand)) "
        r"(?!(?:you|it|that|this|to know)\b)[\w', -]{1,80})"
    ),
    wordings(
        r"(?P<text>i have (?:an?|no|one|two|three|four|five|six|\d{1,3}) "
        r"(?!(?:question|problem|idea|look)\b)[\w' -]{2,40})"
    ),
    wordings(r"(?P<text>my favou?rite [\w' -]{2,40} (?:is|are) [\w', -]{1,80})"),
    wordings(r"(?P<text>my [\w -]{2,40}(?:'s name is| is called| is named) [\w' -]{1,60})"),
    wordings(
        r"(?P<text>my (?:birthday|e-?mail(?: address)?|phone(?: number)?|address|job|shoe size) is "
        r"[\w'@., +-]{1,80})"
    ),
)
_NICKNAME = wordings(r"(?:please )?call me (?!when|if|at|on|in|back|later|tomorrow)(?P<name>[\w'-]+)")


def remember(message: BuiltinMessage) -> Arguments | None:
    """Read a statement to remember, and the subject for which a newer statement replaces it."""
    text = "" if message.text.endswith("?") else _fact(message.phrase)
    noted, stated = first_match(_NOTED, message.phrase), first_match(_STATED, message.phrase)
    match = noted or (stated if stated and _STATEMENT.fullmatch(stated["text"]) else None)
    asks = message.text.endswith("?") and message.text.lower().startswith(_KEEPING)
    if match and not asks:
        text = match["text"]
    return {"text": text, "subject": _subject(text)} if text else None


def _fact(phrase: str) -> str:
    if named := _NICKNAME.fullmatch(phrase):
        return f"my name is {named['name']}"
    fact = first_match(_FACT, phrase)
    return fact["text"] if fact else ""


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
            return subject.format(**{name: value.lower() for name, value in match.groupdict().items()})
    return ""


_EVERYTHING = wordings(
    r"what (?:do you|can you) (?:know|remember|recall) about me",
    r"what (?:do you remember|have you remembered)(?: about me)?",
    r"(?:list|show(?: me)?|read(?: me)?|what are) (?:all )?(?:of )?(?:my|your) (?:memories|notes)",
    r"(?:my notes|who am i)",
)
_RECALL = (
    wordings(r"what (?:do you|can you) (?:know|remember|recall) about (?P<query>.+)"),
    wordings(r"(?:do you (?:remember|know|recall) )?what (?:did i tell|i told) you about (?P<query>.+)"),
    wordings(r"(?:do you (?:remember|know|recall)|recall) (?:about )?my (?P<query>.+)"),
    wordings(r"(?:what|who|when|where)(?:'?s| is| are| was) my (?P<query>[\w' -]+)"),
    wordings(r"what(?:'?s| is) the (?P<query>name) of my (?P<of>[\w' -]+)"),
    wordings(r"(?:what|who) am i (?P<query>[\w-]+) (?:to|of|with)"),
    wordings(r"am i (?P<query>[\w-]+)(?: (?:to|of) (?:anything|something|any \w+))?"),
    wordings(r"what (?:things )?do i (?P<query>like|love|hate|prefer|eat|drink|need)"),
    wordings(r"where did i (?P<query>park|put|leave|store|hide)(?: (?:my|the) (?P<of>[\w' -]+))?"),
    wordings(r"how (?P<query>old) am i"),
    wordings(r"what(?:'?s| is) the (?P<query>(?:[\w'-]+ ){1,3}(?:code|number|password|address|pin|date|size))"),
    wordings(r"(?:what|which) (?P<query>[\w' -]+) do i (?:like|prefer|have)(?: best| most)?"),
    wordings(r"where do (?P<query>i live|i work)"),
    wordings(r"(?:when|where|what|which|how \w+) (?:does|do|did|has|have) my (?P<query>[\w' -]+)"),
    wordings(r"how many (?P<query>[\w' -]+) do i have"),
    wordings(r"what (?P<query>(?:don't|can't) i (?:like|eat|drink))"),
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
    if match is None:
        return None
    words = f"{match['query']} {match.groupdict().get('of') or ''}".strip()
    return {"query": _significant_words(words), "every_word": True}


def _significant_words(query: str) -> str:
    """Return the significant words of a query, or the query if it has none."""
    words = _FILLING.sub(" ", _CALLED.sub("name", query))
    return " ".join(words.split()) or query


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
    match = first_match(_FORGET, message.phrase)
    if not match or _UNNAMED.fullmatch(match["query"]):
        return None
    return {"query": _OWN.sub("", match["query"])}
