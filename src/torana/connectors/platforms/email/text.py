"""Extract the text of a mail from HTML, and the writer's own words without quotations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape

#: Maximum number of quotation levels in the output.
_QUOTES = 5

#: A tag. The pattern never scans a character twice.
_TAG = re.compile(
    r"<!--|<[!?][^<>]*>|<(?P<end>/?)(?P<name>[A-Za-z][A-Za-z0-9]{0,15})(?![A-Za-z0-9])(?P<rest>[^<>]*)>"
)
_HREF = re.compile(r"""\shref=["']?((?:https?|mailto):[^"'\s]{1,500})""", re.IGNORECASE)
_HIDDEN = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "title")}
_BLOCKS = frozenset(
    {"address", "article", "dd", "div", "dl", "dt", "footer", "form", "header", "hr", "li", "section", "tr"}
)
_PARAGRAPHS = frozenset({"blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre", "table", "ul"})


def plain_of(html: str) -> str:
    """Return the text of an HTML page, with its quotations marked by ``>``."""
    page = _Page()
    at = 0
    while tag := _TAG.search(html, at):
        page.write(html[at : tag.start()])
        at = tag.end()
        name = (tag["name"] or "").lower()
        if tag[0] == "<!--":
            end = html.find("-->", at)
            at = len(html) if end < 0 else end + 3
        elif name in _HIDDEN and not tag["end"]:
            hidden = _HIDDEN[name].search(html, at)
            at = hidden.start() if hidden else len(html)
        elif name:
            page.tag(name, tag["rest"], ends=bool(tag["end"]))
    page.write(html[at:])
    return page.text()


class _Page:
    """Collects the text of an HTML page line by line."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []
        self._quotes = 0
        self._pre = 0
        self._link: tuple[str, int] | None = None

    def write(self, words: str) -> None:
        words = _unescape(words)
        if not self._pre:
            words = re.sub(r"\s+", " ", words)
            self._line.append(words if self._line else words.lstrip())
            return
        first, *rest = words.split("\n")
        self._line.append(first)
        for words in rest:
            self._break()
            self._line.append(words)

    def tag(self, name: str, rest: str, *, ends: bool) -> None:
        if name == "br":
            self._break()
        elif name in _BLOCKS or name in _PARAGRAPHS:
            self._gap(blank=name in _PARAGRAPHS)
        match name, ends:
            case "li", False:
                self._line.append("• ")
            case "td" | "th", False:
                self._line.append(" " if self._line else "")
            case "blockquote", _:
                self._quotes = max(0, self._quotes + (-1 if ends else 1))
            case "pre", _:
                self._pre = max(0, self._pre + (-1 if ends else 1))
            case "a", False:
                href = _HREF.search(f" {rest}")
                self._link = (_unescape(href[1]), len(self._line)) if href else None
            case "a", True:
                self._end_link()
            case _:
                pass

    def text(self) -> str:
        self._break()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self._lines)).strip("\n")

    def _end_link(self) -> None:
        """Add the URL after the words of a link, if they differ."""
        if self._link is not None:
            href, start = self._link
            words = "".join(self._line[start:]).strip()
            if words and words != href.removeprefix("mailto:"):
                self._line.append(f" ({href})")
        self._link = None

    def _break(self) -> None:
        self._lines.append(("> " * min(self._quotes, _QUOTES) + "".join(self._line)).rstrip())
        self._line = []

    def _gap(self, *, blank: bool) -> None:
        if self._line and "".join(self._line).strip():
            self._break()
        self._line = []
        if blank and self._lines and self._lines[-1]:
            self._lines.append("")


#: A verb or an address in the attribution line above a quotation. The line also has a time (``_WHEN``).
_WROTE = re.compile(
    r"wrote|schrieb|écrit|escribió|escreveu|scritto|schreef|skrev|kirjoitti|napisał|napsal|írta|a scris|yazdı"
    r"|пиш|написа|έγραψε|כתב|写道|寫道|作成|작성|<[^<>\s]+@[^<>\s]+>",
    re.IGNORECASE,
)
_WHEN = re.compile(r"\d{1,4}[:.h/年-]\s?\d{1,2}")
_ORIGINAL = re.compile(
    r"-{2,}\s*(?:original|urspr|message d'origine|mensaje orig|mensagem orig|messaggio orig|oorspronkelijk"
    r"|исходное|原始邮件|元のメッセージ)[^-]{0,40}-{2,}\s*$",
    re.IGNORECASE,
)
#: Outlook's header of a quoted mail: the sender, and in one of the next lines the date.
_HEAD_FROM = re.compile(
    r"\*?(?:from|von|de|da|van|från|fra|od|от|发件人|寄件者|差出人)\*?\s?[:：]", re.IGNORECASE
)
_HEAD_WHEN = re.compile(
    r"\*?(?:sent|date|gesendet|datum|envoyé|enviado|enviada|inviato|data|verzonden|skickat|sendt|wysłano|отправлено|дата"
    r"|发送时间|日期|送信日時|日時)\*?\s?[:：]",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(r"-- ?$")
_SENT_FROM = re.compile(
    r"(?:sent from my|get outlook for|von meinem \S+ gesendet|gesendet von|envoyé de mon|enviado desde mi"
    r"|enviado do meu|inviato da)\b.{0,60}$",
    re.IGNORECASE,
)
#: The beginning of a forwarded mail's subject.
FORWARDED = re.compile(r"\s*(?:fwd?|wg|tr|rv|enc|vs|vb|vl|i|转发|轉寄)\s*[:：]", re.IGNORECASE)


def strip_quotation(text: str, *, forwarded: bool = False) -> str:
    """Return the writer's own text, without quotations, their attribution lines, and the signature.

    Return the whole text if nothing would remain, or if the mail was ``forwarded``.
    """
    whole = text.strip()
    if forwarded:
        return whole
    lines = whole.split("\n")
    kept: list[str] = []
    has_words = False
    at = 0
    while at < len(lines):
        line = lines[at]
        introduced = _attribution_length(lines, at)
        if line.startswith(">"):
            at += 1
        elif introduced and _is_quotation(lines, at + introduced):
            at += introduced
        elif has_words and (introduced or _ends(lines, at)):
            break
        else:
            kept.append(line.rstrip())
            has_words = has_words or bool(kept[-1])
            at += 1
    rest = "\n".join(kept).strip()
    last = rest.rpartition("\n")
    if _SENT_FROM.match(last[2]):
        rest = last[0].strip()
    return re.sub(r"\n{3,}", "\n\n", rest) or whole


def _attribution_length(lines: Sequence[str], at: int) -> int:
    """Return the number of lines that attribute the following quotation to its writer, or 0."""
    for end in range(at, min(at + 3, len(lines))):
        if not lines[end].strip():
            return 0
        if lines[end].rstrip().endswith((":", "：")):
            # Lines above the attribution are not part of it.
            starts = (start for start in range(end, at - 1, -1) if _tells_who_and_when(lines[start : end + 1]))
            return end + 1 - at if next(starts, None) == at else 0
    return 0


def _tells_who_and_when(lines: Sequence[str]) -> bool:
    text = " ".join(lines)
    return len(text) < 400 and _WROTE.search(text) is not None and _WHEN.search(text) is not None


def _is_quotation(lines: Sequence[str], at: int) -> bool:
    """Return whether the next line that is not empty is a quotation."""
    return next((line.startswith(">") for line in lines[at : at + 3] if line.strip()), False)


def _ends(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    if _SIGNATURE.match(line) or _ORIGINAL.match(line):
        return True
    return _HEAD_FROM.match(line) is not None and any(_HEAD_WHEN.match(one) for one in lines[at + 1 : at + 3])


def _unescape(text: str) -> str:
    """Replace character references; a text with a reference of thousands of digits stays as it is."""
    try:
        return unescape(text)
    except ValueError:
        return text
