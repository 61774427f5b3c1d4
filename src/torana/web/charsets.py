"""Which characters the bytes of a page are."""

from __future__ import annotations

import codecs
import re

#: The encodings of the web (the WHATWG's list), as Python knows them. Python has more: some decode something
#: else altogether, some take for ever.
_OF_THE_WEB = re.compile(
    r"utf-?8|utf-?16(le|be)?|(us-)?ascii|latin-?1|iso[-_]?8859-?\d{1,2}|windows-?\d{3,4}|cp125\d|cp866|koi8-?[ru]"
    r"|macintosh|mac-?roman|gb2312|gbk|gb18030|big5(-?hkscs)?|shift[-_]?jis|sjis|euc-?(jp|kr)|iso-2022-jp",
    re.IGNORECASE,
)
#: What old pages mean when they say ISO 8859-1, or nothing.
_WESTERN = "cp1252"
_SAYS_LATIN = re.compile(r"(us-)?ascii|latin-?1|iso[-_]?8859-?1", re.IGNORECASE)
_IN_PAGE = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w-]{1,40})""", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
#: Bytes at the beginning of a page in which it may say what it is.
_HEAD = 4096


def decode(body: bytes, charset: str | None) -> str:
    """The text of a page whose server said ``charset``.

    A byte order mark is believed first, then the server, then the page itself, then UTF-8 if the bytes can be
    that, and else they are Windows-1252. What fits no encoding becomes U+FFFD.
    """
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    said = charset or ""
    if not _known(said) and (found := _IN_PAGE.search(body[:_HEAD])):
        said = found[1].decode("ascii", "replace")
    if _known(said):
        encoding = _WESTERN if _SAYS_LATIN.fullmatch(said) else said
        return body.decode(encoding, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode(_WESTERN, "replace")


def _known(charset: str) -> bool:
    if not _OF_THE_WEB.fullmatch(charset):
        return False
    try:
        codecs.lookup(charset)
    except LookupError:
        return False
    return True
