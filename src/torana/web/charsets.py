"""Detect the character encoding of a page."""

from __future__ import annotations

import codecs
import re

from torana import characters

#: The encodings of the web (the WHATWG's list), by Python's names. Python's other codecs are not for pages:
#: some are no charsets, some are very slow.
_OF_THE_WEB = re.compile(
    r"utf-?8|utf-?16(le|be)?|(us-)?ascii|latin-?1|iso[-_]?8859-?\d{1,2}|windows-?\d{3,4}|cp125\d|cp866|koi8-?[ru]"
    r"|macintosh|mac-?roman|gb2312|gbk|gb18030|big5(-?hkscs)?|shift[-_]?jis|sjis|euc-?(jp|kr)|iso-2022-jp",
    re.IGNORECASE,
)
#: Pages with ISO 8859-1, or without a declaration, usually contain Windows-1252.
_WESTERN = "cp1252"
_SAYS_LATIN = re.compile(r"(us-)?ascii|latin-?1|iso[-_]?8859-?1", re.IGNORECASE)
# Possessive quantifiers, because a hostile page has thousands of blanks, and `re` stops all other threads.
_IN_PAGE = re.compile(rb"""<meta[^<>]{0,200}?charset\s*+=\s*+["']?+\s*+([\w-]{1,40})""", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
#: The number of bytes in which a page may declare its charset.
_HEAD = 4096


def decode(body: bytes, charset: str | None) -> str:
    """Decode a page whose server declared ``charset``.

    The first of these counts: a byte order mark, the server, the page, UTF-8 if the bytes are valid, else
    Windows-1252. Invalid bytes become U+FFFD. Call it in a thread: a hostile page takes up to a second.
    """
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return characters.decode(body[len(mark) :], encoding)
    name = charset or ""
    if not _is_known_charset(name) and (found := _IN_PAGE.search(body[:_HEAD])):
        name = found[1].decode("ascii", "replace")
    if _is_known_charset(name):
        encoding = _WESTERN if _SAYS_LATIN.fullmatch(name) else name
        return characters.decode(body, encoding)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return characters.decode(body, _WESTERN)


def _is_known_charset(charset: str) -> bool:
    if not _OF_THE_WEB.fullmatch(charset):
        return False
    try:
        codecs.lookup(charset)
    except LookupError:
        return False
    return True
