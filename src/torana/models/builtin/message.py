"""A message in the parts that the rules look at."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Characters of a line that is read as a question or an instruction; a longer one is prose.
PHRASE_LIMIT = 300

_LEADING = re.compile(
    r"\A(?:(?:please|hello|hi|hey|ok|okay|so|well|thanks|torana)\b[,.!:]* *"
    r"|(?:can|could|would|will) you (?:please )?"
    r"|(?:do you know|tell me|show me|let me know|i(?: want|'d like) to know) (?=what|when|where|who|which|how)"
    r"|(?:i want|i'd like|i need) you to )+",
    re.IGNORECASE,
)
# It is sought where no such character stands before, and gives nothing back: each run is looked at once.
_TRAILING = re.compile(
    r"(?<![\s?!.…])[\s?!.…]*+(?:,? *+\b(?:please|thanks|thank you)[\s?!.…]*+)?\Z", re.IGNORECASE
)
_FENCE = re.compile(r"```[\w-]*\n(.*?)\n?```", re.DOTALL)
_JSON = re.compile(
    r"([^\n]{2,200}?(?:\b(?:in|of|from|this|json|object|array|data)|[:?\n]))\s*([\[{].*[\]}])[\s?!.]*",
    re.DOTALL | re.IGNORECASE,
)
#: The end of such JSON. Without one, each beginning that fits would be tried against all of the text.
_JSON_END = re.compile(r"[\]}][\s?!.]*\Z")
_COLON = re.compile(r"([^:\n]{3,200}):\s+(\S.*)")
_IN_QUOTES = re.compile(r'([^"\n]{3,200}) "([^"]+)"[\s?!.]*')
#: What the gateway adds to a scheduled task that comes late.
_NOTE = re.compile(r"\n\n\[This task was due on [^\]\n]+\]\Z")
_STRAIGHT = str.maketrans("’‘“”", "''\"\"")


@dataclass(frozen=True, slots=True)
class Message:
    """What was said, and what was pasted along with it."""

    #: The whole message.
    text: str
    #: The same as one line without courtesies; "" where it has several lines or is long.
    phrase: str
    #: The part that asks for something, and the text that came with it: in a code fence, on the lines below,
    #: after a colon, in quotes, or JSON at the end. Both are "" where nothing was pasted.
    instruction: str
    pasted: str

    @property
    def asked(self) -> str:
        """What was asked, whether or not a text came with it."""
        return self.instruction or self.phrase


def read(text: str) -> Message:
    """Take a message apart. A pasted text stays as it is, but for blank lines around it."""
    text = _NOTE.sub("", text.strip())
    instruction, pasted = _split(text)
    return Message(text, _line(text), _line(instruction), pasted)


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
