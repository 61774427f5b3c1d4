"""A mail taken apart, with bounds.

The standard library's parser takes minutes for some mails of a few megabytes: for a header of semicolons, or
for parts in parts in parts. Here every step is linear, and the library reads single headers, cut before.
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

from torana.connectors.letters.words import FORWARDED, plain_of, said

#: Bounds: characters of a head and of one header, parts in parts, parts in all, characters of the text.
HEAD_LIMIT = 256 * 1024
HEADER_LIMIT = 8_000
DEPTH_LIMIT = 10
PARTS_LIMIT = 300
TEXT_LIMIT = 1_000_000

#: Addresses as people have them; quoted ones and those beyond ASCII are taken for nobody's.
ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}")
MESSAGE_ID = re.compile(r"<[^<>\s]{1,250}>")

Headers = Mapping[str, Sequence[str]]

#: ``From`` in its strict forms, so that nobody reads another address in it than the server that checked it.
_FROM = re.compile(
    rf'(?P<name>[^<>@,:;"()]*|"(?:[^"\\]|\\.)*"\s*)<(?P<inner>{ADDRESS.pattern})>|(?P<bare>{ADDRESS.pattern})'
)
_BLANK = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(r"\r?\n(?=[ \t])")
_LINE_END = re.compile(r"\r?\n")
#: Tabs and line ends are none.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufeff]")
#: What turns the direction of writing or is not seen; what emoji and Persian are joined with stays.
_UNSEEN = re.compile(r"[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069]")
_NO_BASE64 = bytes(set(range(256)) - set(string.ascii_letters.encode() + string.digits.encode() + b"+/"))
#: What is read as UTF-8: ASCII, as many say so and write more, and codecs in which no mail is written.
_NO_CHARSETS = frozenset({"ascii", "idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """What came with a mail; ``content`` is still as it was sent."""

    name: str
    media_type: str
    encoding: str
    content: bytes
    whole: bool = True

    @property
    def size(self) -> int:
        """Bytes that it has when it is decoded, or a few more."""
        if self.encoding != "base64":
            return len(self.content)
        return (len(self.content) - sum(map(self.content.count, (b"\r", b"\n", b"=")))) * 3 // 4

    def decoded(self) -> bytes:
        """The bytes of the file."""
        return _decoded(self.content, self.encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A mail. ``address`` is empty where ``From`` names nobody, or more than one."""

    id: str
    address: str
    name: str
    subject: str
    references: tuple[str, ...]
    text: str
    files: tuple[File, ...]
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A part without parts. Those of the same ``group`` say the same in different forms."""

    head: Message
    body: bytes
    group: int


def read(raw: bytes, *, whole: bool = True) -> Letter:
    """The mail that these bytes are; where they are not the ``whole`` of it, its last file is not whole either.

    Raises ``ValueError`` where nothing can be made of them.
    """
    head, _ = _parted(raw)
    if len(head) > HEAD_LIMIT:
        raise ValueError("its head is too long")
    headers = _headers(head)
    leaves = list(_leaves(raw))
    texts = [leaf for leaf in leaves if _is_text(leaf)]
    files = [_file(leaf, whole or leaf is not leaves[-1]) for leaf in leaves if not _is_text(leaf)]
    address, name = _author(headers)
    subject = line(header(headers, "subject"), 300)
    return Letter(
        id=next(iter(_ids(headers, "message-id")), ""),
        address=address,
        name=name,
        subject=subject,
        references=_ids(headers, "references") or _ids(headers, "in-reply-to"),
        text=said(_text(texts), forwarded=FORWARDED.match(subject) is not None),
        files=tuple(files),
        headers=headers,
    )


def header(headers: Headers, name: str) -> str:
    """A header's first value, or nothing."""
    return next(iter(headers.get(name, ())), "")


def line(value: str, limit: int) -> str:
    """A header for people: decoded, one line, without what cannot be seen."""
    try:
        pieces = [_in_charset(piece, charset or "latin-1") for piece, charset in decode_header(value[:2_000])]
    except (ValueError, HeaderParseError):  # encoded words that are none
        pieces = [value]
    return " ".join(_UNSEEN.sub("", _CONTROL.sub(" ", "".join(pieces))).split())[:limit].strip()


# Parts


def _leaves(raw: bytes) -> Iterator[_Leaf]:
    """All parts without parts, in their order, as many as there may be."""
    todo: list[tuple[bytes, int, int]] = [(raw, 0, 0)]
    groups = seen = 0
    while todo and seen < PARTS_LIMIT:
        entity, depth, group = todo.pop()
        seen += 1
        head_bytes, body = _parted(entity)
        head = _described(_headers(head_bytes))
        boundary = head.get_boundary("") if head.get_content_maintype() == "multipart" else ""
        if boundary and depth < DEPTH_LIMIT:
            if head.get_content_subtype() == "alternative" and not group:
                groups += 1
                group = groups
            inner = [(part, depth + 1, group) for part in _split(body, boundary)]
            todo.extend(reversed(inner))
        else:
            yield _Leaf(head=head, body=body, group=group)


def _parted(entity: bytes) -> tuple[bytes, bytes]:
    """Head and body."""
    if entity[:1] in (b"\n", b"\r"):  # a part without a head
        return b"", entity.lstrip(b"\r\n")
    blank = _BLANK.search(entity)
    if blank is None:
        return entity, b""
    return entity[: blank.start()], entity[blank.end() :]


def _split(body: bytes, boundary: str) -> list[bytes]:
    """What stands between the boundaries; behind the last one nothing counts."""
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


def _described(headers: Headers) -> Message:
    """What a part says of itself, for the library to read."""
    head = Message()
    for name in ("content-type", "content-disposition", "content-transfer-encoding"):
        if value := header(headers, name)[:1_000]:
            head[name] = value
    return head


def _is_text(leaf: _Leaf) -> bool:
    kind = leaf.head.get_content_type()
    attached = leaf.head.get_content_disposition() == "attachment" or leaf.head.get_filename()
    return kind in ("text/plain", "text/html") and not attached


def _file(leaf: _Leaf, whole: bool) -> File:
    name = line(leaf.head.get_filename("") or "", 200).replace("/", "_").replace("\\", "_")
    return File(
        name=name,
        media_type=leaf.head.get_content_type(),
        encoding=_encoding(leaf.head),
        content=leaf.body,
        whole=whole,
    )


def _encoding(head: Message) -> str:
    return str(head.get("content-transfer-encoding", "")).strip().lower()


def _decoded(content: bytes, encoding: str) -> bytes:
    if encoding == "base64":
        letters = content.translate(None, _NO_BASE64)
        if len(letters) % 4 == 1:  # a character alone means nothing
            letters = letters[:-1]
        return base64.b64decode(letters + b"=" * (-len(letters) % 4))
    return quopri.decodestring(content) if encoding == "quoted-printable" else content


# Text


def _text(leaves: Sequence[_Leaf]) -> str:
    """The texts one below the other; of each group its plain form, or what its HTML says."""
    groups: dict[int, list[_Leaf]] = {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(leaf.group or -1 - number, []).append(leaf)
    done: list[str] = []
    for group in groups.values():
        plain = [leaf for leaf in group if leaf.head.get_content_subtype() == "plain"]
        written = "\n\n".join(_content(leaf) for leaf in plain).strip()
        if not written:
            written = "\n\n".join(plain_of(_content(leaf)) for leaf in group if leaf not in plain)
        done.append(written.strip())
    return "\n\n".join(text for text in done if text)[:TEXT_LIMIT]


def _content(leaf: _Leaf) -> str:
    data = _decoded(leaf.body[: 4 * TEXT_LIMIT], _encoding(leaf.head))[: 2 * TEXT_LIMIT]
    text = _in_charset(data, leaf.head.get_content_charset())[:TEXT_LIMIT]
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _in_charset(data: bytes | str, charset: str | None) -> str:
    if isinstance(data, str):
        return data
    try:
        codec = codecs.lookup(charset or "utf-8").name
        return data.decode("utf-8" if codec in _NO_CHARSETS else codec, "replace")
    except (LookupError, ValueError):  # a name that is none, or no encoding of texts
        return data.decode("utf-8", "replace")


def _ids(headers: Headers, name: str) -> tuple[str, ...]:
    return tuple(MESSAGE_ID.findall(header(headers, name)))


def _author(headers: Headers) -> tuple[str, str]:
    """Address and name of the one writer."""
    values = headers.get("from", ())
    found = _FROM.fullmatch(values[0]) if len(values) == 1 and len(values[0]) < 1_000 else None
    if found is None:
        return "", ""
    name = re.sub(r"\\(.)", r"\1", (found["name"] or "").strip().strip('"'))
    return (found["inner"] or found["bare"]).lower(), line(name, 100)
