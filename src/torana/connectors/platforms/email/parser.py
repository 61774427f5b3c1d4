"""Parse mail in linear time, within limits.

The standard library's parser takes minutes for some mails of a few megabytes, such as a header of semicolons or
deeply nested parts. Here each step is linear, and the library parses only single headers of limited length.
"""

from __future__ import annotations

import base64
import codecs
import quopri
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message

from torana.characters import CONTROLS, HIDDEN, SURROGATES, char_class, decode
from torana.connectors.platforms.email.text import FORWARDED, plain_of, strip_quotation

#: Limits: characters of all headers and of one header, nesting, number of parts, characters of the text.
HEAD_LIMIT = 256 * 1024
HEADER_LIMIT = 8_000
DEPTH_LIMIT = 10
PARTS_LIMIT = 300
TEXT_LIMIT = 1_000_000

#: Usual addresses; quoted and non-ASCII addresses are not accepted.
ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}")
MESSAGE_ID = re.compile(r"<[^<>\s]{1,250}>")

Headers = Mapping[str, Sequence[str]]

#: ``From`` in strict form, so that the gateway reads the same address as the server that authenticated it.
_FROM = re.compile(
    rf'(?P<name>[^<>@,:;"()]*|"(?:[^"\\]|\\.)*"\s*)<(?P<inner>{ADDRESS.pattern})>|(?P<bare>{ADDRESS.pattern})'
)
_BLANK = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(r"\r?\n(?=[ \t])")
_LINE_END = re.compile(r"\r?\n")
#: Control characters except tabs and line feeds.
_CONTROL = char_class("\r", CONTROLS, SURROGATES, "\ufeff")
#: Invisible and bidirectional characters, except the joiners of emoji and Persian.
_UNSEEN = char_class(HIDDEN)
_NO_BASE64 = bytes(set(range(256)) - set(string.ascii_letters.encode() + string.digits.encode() + b"+/"))
#: Charsets that are read as UTF-8: ASCII, which mails often declare wrongly, and codecs not used in mail.
_NO_CHARSETS = frozenset({"ascii", "idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MailFile:
    """A file of a mail; ``content`` is still encoded for transfer."""

    name: str
    media_type: str
    encoding: str
    content: bytes
    whole: bool = True

    @property
    def size(self) -> int:
        """Return the size in bytes after decoding, or slightly more."""
        if self.encoding != "base64":
            return len(self.content)
        return (len(self.content) - sum(map(self.content.count, (b"\r", b"\n", b"=")))) * 3 // 4

    def decode(self) -> bytes:
        return _decode_content(self.content, self.encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedEmail:
    """A mail. ``address`` is empty unless ``From`` contains exactly one valid address."""

    id: str
    address: str
    name: str
    subject: str
    references: tuple[str, ...]
    in_reply_to: str | None
    text: str
    files: tuple[MailFile, ...]
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A part without parts. Leaves of the same ``group`` are alternatives of the same content."""

    head: Message
    body: bytes
    group: int


def read(raw: bytes, *, whole: bool = True) -> ParsedEmail:
    """Parse a mail. If ``whole`` is false, the mail was cut, and its last file is not whole.

    Raises ``ValueError`` for an unreadable mail.
    """
    head, _ = _split_head_and_body(raw)
    if len(head) > HEAD_LIMIT:
        raise ValueError("the headers are too long")
    headers = _headers(head)
    leaves = list(_leaves(raw))
    texts = [leaf for leaf in leaves if _is_text(leaf)]
    files = [_file(leaf, whole or leaf is not leaves[-1]) for leaf in leaves if not _is_text(leaf)]
    address, name = _author(headers)
    subject = line(header(headers, "subject"), 300)
    references, parents = _ids(headers, "references"), _ids(headers, "in-reply-to")
    return ParsedEmail(
        id=next(iter(_ids(headers, "message-id")), ""),
        address=address,
        name=name,
        subject=subject,
        references=references or parents,
        # RFC 5322, 3.6.4: the last reference is the parent, too, but some mail programs do not add it.
        in_reply_to=next(iter(parents or references[-1:]), None),
        text=strip_quotation(_text(texts), forwarded=FORWARDED.match(subject) is not None),
        files=tuple(files),
        headers=headers,
    )


def header(headers: Headers, name: str) -> str:
    return next(iter(headers.get(name, ())), "")


def line(value: str, limit: int) -> str:
    """Return a header as readable text: decoded, on one line, without invisible characters."""
    try:
        pieces = [_in_charset(piece, charset or "latin-1") for piece, charset in decode_header(value[:2_000])]
    except (ValueError, HeaderParseError):  # invalid encoded words
        pieces = [value]
    return " ".join(_UNSEEN.sub("", _CONTROL.sub(" ", "".join(pieces))).split())[:limit].strip()


# Parts


def _leaves(raw: bytes) -> Iterator[_Leaf]:
    """Yield all parts without parts in order, up to the limit."""
    todo: list[tuple[bytes, int, int]] = [(raw, 0, 0)]
    groups = seen = 0
    while todo and seen < PARTS_LIMIT:
        entity, depth, group = todo.pop()
        seen += 1
        head_bytes, body = _split_head_and_body(entity)
        head = _parse_part_headers(_headers(head_bytes))
        boundary = head.get_boundary("") if head.get_content_maintype() == "multipart" else ""
        if boundary and depth < DEPTH_LIMIT:
            if head.get_content_subtype() == "alternative" and not group:
                groups += 1
                group = groups
            inner = [(part, depth + 1, group) for part in _split(body, boundary)]
            todo.extend(reversed(inner))
        else:
            yield _Leaf(head=head, body=body, group=group)


def _split_head_and_body(entity: bytes) -> tuple[bytes, bytes]:
    if entity[:1] in (b"\n", b"\r"):  # a part without headers
        return b"", entity.lstrip(b"\r\n")
    blank = _BLANK.search(entity)
    if blank is None:
        return entity, b""
    return entity[: blank.start()], entity[blank.end() :]


def _split(body: bytes, boundary: str) -> list[bytes]:
    """Return the parts between the boundaries; the text after the last boundary is ignored."""
    mark = re.compile(rb"\n--" + re.escape(boundary.encode("ascii", "replace")) + rb"(--)?[ \t]*(?=\r?\n|\Z)")
    body = b"\n" + body
    parts: list[bytes] = []
    start = -1
    for found in mark.finditer(body):
        if start >= 0:
            parts.append(body[start : found.start()].removesuffix(b"\r"))
        end = found.end()
        start = -1 if found[1] else end + (2 if body[end : end + 1] == b"\r" else 1)
        if found[1] or len(parts) >= PARTS_LIMIT:
            return parts
    if start >= 0:
        parts.append(body[start:])
    return parts


def _headers(head: bytes) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for entry in _LINE_END.split(_FOLD.sub("", head[:HEAD_LIMIT].decode("utf-8", "replace"))):
        name, colon, value = entry.partition(":")
        if colon:
            cut = f"{value[:HEADER_LIMIT]}…" if len(value) > HEADER_LIMIT else value
            headers.setdefault(name.strip().lower(), []).append(cut.strip())
    return headers


def _parse_part_headers(headers: Headers) -> Message:
    """Return the headers of a part as the library's message."""
    head = Message()
    for name in ("content-type", "content-disposition", "content-transfer-encoding"):
        if value := header(headers, name)[:1_000]:
            head[name] = value
    return head


def _is_text(leaf: _Leaf) -> bool:
    kind = leaf.head.get_content_type()
    attached = leaf.head.get_content_disposition() == "attachment" or leaf.head.get_filename()
    return kind in ("text/plain", "text/html") and not attached


def _file(leaf: _Leaf, whole: bool) -> MailFile:
    name = line(leaf.head.get_filename("") or "", 200).replace("/", "_").replace("\\", "_")
    return MailFile(
        name=name,
        media_type=leaf.head.get_content_type(),
        encoding=_encoding(leaf.head),
        content=leaf.body,
        whole=whole,
    )


def _encoding(head: Message) -> str:
    return str(head.get("content-transfer-encoding", "")).strip().lower()


def _decode_content(content: bytes, encoding: str) -> bytes:
    if encoding == "base64":
        letters = content.translate(None, _NO_BASE64)
        if len(letters) % 4 == 1:  # a single last character is invalid
            letters = letters[:-1]
        return base64.b64decode(letters + b"=" * (-len(letters) % 4))
    return quopri.decodestring(content) if encoding == "quoted-printable" else content


# Text


def _text(leaves: Sequence[_Leaf]) -> str:
    """Join the texts of all leaves; of each group the plain text, or the text of the HTML.

    At most ``TEXT_LIMIT`` characters are read, of all leaves together, because HTML takes a second per million.
    """
    groups: dict[int, list[_Leaf]] = {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(leaf.group or -1 - number, []).append(leaf)
    done: list[str] = []
    room = TEXT_LIMIT
    for group in groups.values():
        plain = [leaf for leaf in group if leaf.head.get_content_subtype() == "plain"]
        texts, room = _contents(plain, room)
        written = "\n\n".join(texts).strip()
        if not written:
            pages, room = _contents([leaf for leaf in group if leaf not in plain], room)
            written = "\n\n".join(map(plain_of, pages))
        done.append(written.strip())
    return "\n\n".join(text for text in done if text)[:TEXT_LIMIT]


def _contents(leaves: Sequence[_Leaf], room: int) -> tuple[list[str], int]:
    """Return the contents of leaves up to ``room`` characters in total, and the number of characters left."""
    texts: list[str] = []
    for leaf in leaves:
        texts.append(_content(leaf, room))
        room -= len(texts[-1])
    return texts, room


def _content(leaf: _Leaf, limit: int) -> str:
    data = _decode_content(leaf.body[: 4 * limit], _encoding(leaf.head))[: 2 * limit]
    text = _in_charset(data, leaf.head.get_content_charset())[:limit]
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _in_charset(data: bytes | str, charset: str | None) -> str:
    if isinstance(data, str):
        return data
    try:
        codec = codecs.lookup(charset or "utf-8").name
        return decode(data, "utf-8" if codec in _NO_CHARSETS else codec)
    except (LookupError, ValueError):  # an unknown charset, or a codec that is not for texts
        return data.decode("utf-8", "replace")


def _ids(headers: Headers, name: str) -> tuple[str, ...]:
    return tuple(MESSAGE_ID.findall(header(headers, name)))


def _author(headers: Headers) -> tuple[str, str]:
    """Return address and name of the sender; empty unless there is exactly one."""
    values = headers.get("from", ())
    found = _FROM.fullmatch(values[0]) if len(values) == 1 and len(values[0]) < 1_000 else None
    if found is None:
        return "", ""
    name = re.sub(r"\\(.)", r"\1", (found["name"] or "").strip().strip('"'))
    return (found["inner"] or found["bare"]).lower(), line(name, 100)
