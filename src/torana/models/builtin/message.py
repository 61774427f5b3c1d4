"""Split a message into the parts that the rules match."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Maximum characters of a question or an instruction; a longer line is prose.
PHRASE_LIMIT = 300

_LEADING = re.compile(
    r"\A(?:(?:please|hello|hi|hey|ok|okay|so|well|thanks|torana)\b[,.!:]* *"
    r"|(?:can|could|would|will) you (?:please )?"
    r"|(?:do you know|tell me|show me|let me know|i(?: want|'d like) to know) (?=what|when|where|who|which|how)"
    r"|(?:i want|i'd like|i need) you to )+",
    re.IGNORECASE,
)
# The lookbehind and possessive quantifiers ensure that each run of characters is scanned once.
_TRAILING = re.compile(
    r"(?<![\s?!.…])[\s?!.…]*+(?:,? *+\b(?:please|thanks|thank you)[\s?!.…]*+)?\Z", re.IGNORECASE
)
_FENCE = re.compile(r"```[\w-]*\n(.*?)\n?```", re.DOTALL)
_JSON = re.compile(
    r"([^\n]{2,200}?(?:\b(?:in|of|from|this|json|object|array|data)|[:?\n]))\s*([\[{].*[\]}])[\s?!.]*",
    re.DOTALL | re.IGNORECASE,
)
#: The end of ``_JSON`` is checked first: otherwise each possible beginning would be matched with the whole
#: text.
_JSON_END = re.compile(r"[\]}][\s?!.]*\Z")
_COLON = re.compile(r"([^:\n]{3,200}):\s+(\S.*)")
_IN_QUOTES = re.compile(r'([^"\n]{3,200}) "([^"]+)"[\s?!.]*')
#: The gateway's note on a late scheduled task.
_NOTE = re.compile(r"\n\n\[This task was due on [^\]\n]+\]\Z")
_STRAIGHT = str.maketrans("’‘“”", "''\"\"")


@dataclass(frozen=True, slots=True)
class BuiltinMessage:
    """A user message: the question, and the text pasted with it."""

    #: The whole message.
    text: str
    #: The text as one line without polite phrases; '' if it has several lines or is long.
    phrase: str
    #: The request, and the text pasted with it: in a code fence, on the lines below, after a colon, in quotes,
    #: or JSON at the end. Both are '' if nothing was pasted.
    instruction: str
    pasted: str

    @property
    def question(self) -> str:
        """Return the question, with or without pasted text."""
        return self.instruction or self.phrase


def read(text: str) -> BuiltinMessage:
    """Split a message. Pasted text is unchanged except for blank lines around it."""
    text = _NOTE.sub("", text.strip())
    instruction, pasted = _split(text)
    return BuiltinMessage(text, _line(text), _line(instruction), pasted)


def _split(text: str) -> tuple[str, str]:
    if fence := _FENCE.search(text):
        return text[: fence.start()] + text[fence.end() :], fence[1]
    if _JSON_END.search(text) and (match := _JSON.fullmatch(text)):
        return match[1], match[2]
    first, newline, rest = text.partition("\n")
    if newline:
        return first, rest.strip("\n")
    match = _COLON.fullmatch(text) or _IN_QUOTES.fullmatch(text.translate(_STRAIGHT))
    return (match[1], match[2]) if match else ("", "")


def _line(text: str) -> str:
    if len(text) > 2 * PHRASE_LIMIT:
        return ""
    trimmed = _TRAILING.sub("", text.translate(_STRAIGHT)).strip()
    line = _LEADING.sub("", " ".join(trimmed.split())).rstrip(": ")
    return "" if "\n" in trimmed or len(line) > PHRASE_LIMIT else line
