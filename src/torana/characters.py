"""Control and invisible characters: one table, and filters that remove or escape them.

The table consists of parts of regular expression character classes; ``char_class`` combines them.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable
from typing import Literal

#: Control characters, without tabs, line feeds and carriage returns.
CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
LINE_SEPARATORS = "\u2028\u2029"
#: Characters that change the direction of the text.
BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
ZERO_WIDTH = "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"
#: Zero-width joiners, which emoji and some scripts, such as Persian, need.
JOINERS = "\u200c\u200d"
#: Tags, in which a text can be hidden, and variation selectors.
TAGS = "\U000e0000-\U000e01ef"
SURROGATES = "\ud800-\udfff"
PRIVATE = "\ue000-\uf8ff\U000f0000-\U0010ffff"
#: Letters, marks and symbols that are shown as nothing.
FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\U00016fe4\U0001d159"
#: The characters that no text needs.
HIDDEN = CONTROLS + LINE_SEPARATORS + BIDI + ZERO_WIDTH + TAGS + SURROGATES

#: The characters of the Unicode categories below that a text may contain.
_KEPT = frozenset("\n\t" + JOINERS)
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Printable characters that look like a space, or like nothing.
_BLANK = frozenset(FILLERS + "\u2800\u2d7f\ufffc\U0001107f")
_REMOVED = frozenset({"Cc", "Cf", "Cs", "Cn", "Co"})
#: The maximum length of a run of combining marks, and the characters that become marks by decomposition.
_MARKS = 30
_DECOMPOSED_MARKS = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")
#: Characters whose appearance a variation selector changes: symbols, the signs of keys, and Mongolian letters.
_VARIED = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u27bf\u2934\u2935\u2b05-\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_KEY = r"(?<=[0-9#*])\ufe0f(?=\u20e3)"
_MONGOLIAN = "\u1807\u180a\u1820-\u18aa"
#: Variation selectors elsewhere are shown as nothing, like fillers. Joiners may occur one by one. A text can be
#: hidden in the others.
_SEQUENCES = (
    re.compile(
        rf"[{FILLERS}\u2065\ufff0-\ufff8\U000e0000-\U000e0fff\ufe00-\ufe0d]"
        rf"|(?<![{_VARIED}])(?!{_KEY})[\ufe0e\ufe0f]"
        rf"|(?<![{_MONGOLIAN}])[\u180b-\u180d\u180f]"
    ),
    re.compile(f"[{JOINERS}]{{2,}}"),
)


#: The number of bytes that are decoded at once: a few milliseconds.
_PIECE = 16 * 1024
#: The byte order marks of the encodings whose incremental decoders require a mark.
_BYTE_ORDERS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}


def decode(data: bytes, encoding: str) -> str:
    """Decode a text; invalid bytes become U+FFFD. Raises ``LookupError`` if ``encoding`` is no text encoding.

    A codec can take a second for 2 MiB of invalid bytes, and no other thread runs meanwhile. The text is
    therefore decoded in pieces. Call it in a thread for a long text.
    """
    b" ".decode(encoding, "replace")  # refuses codecs such as zip
    name = codecs.lookup(encoding).name
    marks = _BYTE_ORDERS.get(name)
    decoder = codecs.getincrementaldecoder(f"{name}-le" if marks and not data.startswith(marks) else name)(
        "replace"
    )
    pieces = [decoder.decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def is_storable(text: str) -> bool:
    """Return whether a text is Unicode without U+0000 and without half of a surrogate pair."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def cut_to_bytes(text: str, size: int) -> str:
    """Return the start of the text that has at most ``size`` bytes in UTF-8, with surrogates replaced."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def char_class(*parts: str) -> re.Pattern[str]:
    """Return a pattern that matches one character of these parts of the table."""
    return re.compile(f"[{''.join(parts)}]")


def remove_hidden(text: str) -> str:
    """Return the text without hidden characters, and with line feeds as line ends.

    Removed are control, format, bidirectional, tag, filler, private and unassigned characters and surrogates.
    """
    text = re.sub(f"\r\n|[\r{LINE_SEPARATORS}]", "\n", text)
    if text.isascii() and text.isprintable():
        return text
    kept = "".join(char for char in text if char in _KEPT or unicodedata.category(char) not in _REMOVED)
    return remove_blank_sequences(kept)


def remove_blank_sequences(text: str) -> str:
    """Return the text without fillers, and without variation selectors and joiners that change nothing."""
    for sequence in _SEQUENCES:
        text = sequence.sub("", text)
    return text


def escape_hidden(text: str) -> str:
    """Return the text with hidden characters escaped; line feeds, tabs and single joiners stay."""
    if text.isascii() and text.isprintable():
        return text
    escaped = "".join(
        escape(char) if char not in _KEPT and unicodedata.category(char) in _ESCAPED else char for char in text
    )
    for sequence in _SEQUENCES:
        escaped = sequence.sub(lambda found: escape(found[0]), escaped)
    return escaped


def escape_unprintable(text: str, *, keep: str = "") -> str:
    """Return the text with unprintable and blank characters escaped, also joiners, except those in ``keep``."""
    return _escape_unprintable(text, keep, escape)


def escape_unprintable_json(text: str) -> str:
    """Return a JSON text with unprintable and blank characters escaped. Its value stays the same."""
    return _escape_unprintable(text, "\n", _escape_json)


def _escape_unprintable(text: str, keep: str, escape: Callable[[str], str]) -> str:
    unprintable = (char for char in set(text) if not char.isprintable() or char in _BLANK)
    escaped = text.translate({ord(char): escape(char) for char in unprintable if char not in keep})
    for sequence in _SEQUENCES:
        escaped = sequence.sub(lambda found: escape(found[0]), escaped)
    return escaped


def escape(text: str) -> str:
    """Return the text in the escapes of a Python string literal."""
    return text.encode("unicode_escape").decode("ascii")


def _escape_json(text: str) -> str:
    return re.sub("....", r"\\u\g<0>", text.encode("utf-16-be", "surrogatepass").hex())


def is_header_value(text: str) -> bool:
    """Return whether a text fits into an HTTP header: printable ASCII, without a space at an end.

    HTTP clients refuse other texts with errors that contain them, so check secrets before they are sent.
    """
    return text.isascii() and text.isprintable() and text == text.strip(" ")


def one_line(text: str, limit: int = 200) -> str:
    """Return at most ``limit`` characters of the text, on one line and without unprintable characters."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    return " ".join(shown.split())[:limit]


def normalize(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
    """Return the normal form of the text, in linear time.

    A run of combining marks is cut to 30 marks, as in the Stream-Safe Text Format (UAX #15): the time that
    ``unicodedata`` takes for a run is quadratic.
    """
    if text.isascii():
        return text
    run, kept = 0, list[str]()
    for char in text:
        run = run + 1 if unicodedata.combining(char) or char in _DECOMPOSED_MARKS else 0
        if run <= _MARKS:
            kept.append(char)
    return unicodedata.normalize(form, "".join(kept))
