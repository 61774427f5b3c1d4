"""Markdown, as models write it, in the markup of each platform.

Each function takes any text whatsoever and gives one that the platform shows: what it has no form for is
written out plainly, and nothing in it calls anybody's name or runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from torana.connectors.markdown import parse

if TYPE_CHECKING:
    from markdown_it.token import Token

#: Addresses that a link may have; any other is written out as text.
_SAFE = re.compile(r"(https?|mailto|tel|matrix):", re.IGNORECASE)

#: Characters that the addresses of all links may have, for each character of the text: one beyond ASCII is
#: written in up to twelve. An address that is defined once and used often could make megabytes of a short text;
#: beyond the bound only a link's words are shown.
_ADDRESSES = 12

#: What Discord takes for marks.
_SPECIAL = re.compile(r"[*_~`|>\\\[\]#<-]")

#: Quotations and lists in each other, on one line, deeper than anybody reads.
_LEVEL = r"[ \t]{0,3}(?:>|[-*+][ \t]|\d{1,9}[.)][ \t])"
_DEEP = re.compile(rf"^((?:{_LEVEL}){{10}})(?:{_LEVEL})+", re.MULTILINE)
#: A line that begins a block of code, and says much behind that: it would not be shown.
_LONG_INFO = re.compile(r"^( {0,3})(?=(?:`{3,}[^`\n]{41,}|~{3,}[^\n]{41,})$)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a platform writes things. ``marks`` gives what stands before and behind, by Markdown's name."""

    text: Callable[[str], str] = str
    marks: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    #: What stands around a block of code; how its inside is written, and code in a line.
    block: tuple[str, str] = ("", "")
    code: Callable[[str], str] = str
    span: Callable[[str], str] = str
    #: Gives a link, from its address and its words, which are in the dialect already.
    link: Callable[[str, str], str] = lambda url, words: words if words == url else f"{words} ({url})"
    #: What stands before each line of a quotation, or None where ``marks`` has its two ends.
    quote: str | None = "> "


def render(markdown: str, dialect: Dialect) -> str:
    """The text in a dialect, its blocks parted by empty lines."""
    return _Renderer(dialect, addresses=_ADDRESSES * len(markdown)).blocks(parse(tame(markdown))).strip("\n")


def tame(markdown: str) -> str:
    """The text without what a parser of Markdown would drop silently; done again it changes nothing."""
    return _LONG_INFO.sub(r"\1\\", _DEEP.sub(r"\1", markdown))


class _Renderer:
    def __init__(self, dialect: Dialect, *, addresses: int) -> None:
        """``addresses`` is how many characters the addresses of all links may have together."""
        self._dialect = dialect
        self._addresses = addresses

    def blocks(self, tokens: Sequence[Token], *, tight: bool = False) -> str:
        """Blocks, each with those inside of it."""
        done: list[str] = []
        at = 0
        while at < len(tokens):
            end = _end_of(tokens, at)
            if text := self._block(tokens[at], tokens[at + 1 : end]):
                done.append(text)
            at = end + 1
        return ("\n" if tight else "\n\n").join(done)

    def _block(self, token: Token, inside: Sequence[Token]) -> str:
        match token.type:
            case "heading_open":
                return self._marked("strong", self.blocks(inside))
            case "bullet_list_open" | "ordered_list_open":
                return self._list(token, inside)
            case "blockquote_open":
                return self._quote(self.blocks(inside))
            case "fence" | "code_block":
                before, behind = self._dialect.block
                return f"{before}{self._dialect.code(token.content.rstrip())}{behind}"
            case "hr":
                return "———"
            case "table_open":
                return self._table(inside)
            case "inline":
                return self._inline(token.children or [])
            case _:
                return self.blocks(inside)

    def _list(self, token: Token, inside: Sequence[Token]) -> str:
        number = int(token.attrGet("start") or 1)
        items: list[str] = []
        at = 0
        while at < len(inside):
            end = _end_of(inside, at)
            mark = f"{number + len(items)}." if token.type == "ordered_list_open" else "•"
            body = self.blocks(inside[at + 1 : end], tight=True)
            items.append(f"{mark} " + body.replace("\n", "\n   "))
            at = end + 1
        return "\n".join(items)

    def _quote(self, body: str) -> str:
        prefix = self._dialect.quote
        if prefix is None:
            return self._marked("blockquote", body)
        return "\n".join(f"{prefix}{line}" for line in body.split("\n"))

    def _table(self, inside: Sequence[Token]) -> str:
        """A row per line: no chat platform has tables of its own."""
        rows: list[list[str]] = []
        for token in inside:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(self._inline(token.children or []))
        return "\n".join(" | ".join(row) for row in rows)

    def _inline(self, tokens: Sequence[Token]) -> str:
        """A line's marks, in each other as deep as they may be."""
        opened: list[Token] = []
        done: list[list[str]] = [[]]
        for token in tokens:
            if token.nesting > 0:
                opened.append(token)
                done.append([])
            elif token.nesting < 0:
                words = "".join(done.pop())
                done[-1].append(self._around(opened.pop(), words))
            else:
                done[-1].append(self._leaf(token))
        return "".join(done[0])

    def _around(self, token: Token, words: str) -> str:
        if token.type == "link_open":
            return self._link(str(token.attrGet("href") or ""), words)
        return self._marked(token.tag, words)

    def _leaf(self, token: Token) -> str:
        match token.type:
            case "softbreak" | "hardbreak":
                return "\n"
            case "code_inline":
                return self._marked("code", self._dialect.span(token.content))
            case "image":
                return self._link(str(token.attrGet("src") or ""), self._dialect.text(token.content))
            case _:
                return self._dialect.text(token.content)

    def _link(self, url: str, words: str) -> str:
        words = words or self._dialect.text(url)
        if not _SAFE.match(url) or len(url) > self._addresses:
            return words
        self._addresses -= len(url)
        return self._dialect.link(url, words)

    def _marked(self, tag: str, body: str) -> str:
        before, behind = self._dialect.marks.get(tag, ("", ""))
        return f"{before}{body}{behind}" if body.strip() else body


def _end_of(tokens: Sequence[Token], at: int) -> int:
    """Where the element ends that begins here."""
    depth = 0
    for place in range(at, len(tokens)):
        depth += tokens[place].nesting
        if depth <= 0:
            return place
    return len(tokens)


def _fenced(code: str) -> str:
    """A block of code that cannot end itself: a fence inside of it is parted by an invisible character."""
    return code.replace("```", "`\u200b`\u200b`")


def _spanned(code: str) -> str:
    """Code in a line that cannot end itself."""
    return code.replace("`", "ˋ")


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def _html(text: str) -> str:
    return escape(text, quote=False)


def _html_link(url: str, words: str) -> str:
    return f'<a href="{escape(url)}">{words}</a>'


_PLAIN = Dialect()

#: An ``@`` at which Telegram would find a name, be it in the next piece of text; addresses keep theirs.
_CALL = re.compile(r"https?://[\w.-]+\.\w{2,}/\S*|(?<!\w)@")


def _telegram_text(text: str) -> str:
    return _html(_CALL.sub(lambda found: "@\u200b" if found[0] == "@" else found[0], text))


#: Telegram's "HTML" style takes these tags alone.
_TELEGRAM = Dialect(
    text=_telegram_text,
    marks={
        "strong": ("<b>", "</b>"),
        "em": ("<i>", "</i>"),
        "s": ("<s>", "</s>"),
        "code": ("<code>", "</code>"),
    },
    block=("<pre>", "</pre>"),
    code=_html,
    span=_html,
    link=_html_link,
    quote="&gt; ",
)


def _uncalled(text: str) -> str:
    """An invisible character keeps `@everyone` and `<@id>` from calling anybody."""
    return text.replace("@", "@\u200b")


_DISCORD = Dialect(
    text=lambda text: _uncalled(_escaped(text)),
    marks={"strong": ("**", "**"), "em": ("*", "*"), "s": ("~~", "~~"), "code": ("`", "`")},
    block=("```\n", "\n```"),
    code=lambda code: _uncalled(_fenced(code)),
    span=lambda code: _uncalled(_spanned(code)),
    link=lambda url, words: words if words == url else f"{words} (<{url}>)",
)


def _slack_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_SLACK = Dialect(
    text=_slack_text,
    marks={"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~"), "code": ("`", "`")},
    block=("```\n", "\n```"),
    code=lambda code: _slack_text(_fenced(code)),
    span=lambda code: _slack_text(_spanned(code)),
    link=lambda url, words: f"<{_slack_text(url).replace('|', '%7C')}|{words.replace('|', '¦')}>",
    quote="&gt; ",
)

_WHATSAPP = Dialect(
    marks={"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~"), "code": ("`", "`")},
    block=("```", "```"),
    code=_fenced,
    span=_spanned,
)

_HTML = Dialect(
    text=_html,
    marks={
        "strong": ("<strong>", "</strong>"),
        "em": ("<em>", "</em>"),
        "s": ("<del>", "</del>"),
        "code": ("<code>", "</code>"),
        "blockquote": ("<blockquote>", "</blockquote>"),
    },
    block=("<pre><code>", "</code></pre>"),
    code=_html,
    span=_html,
    link=_html_link,
    quote=None,
)


def plain(markdown: str) -> str:
    """Text alone, for platforms without any markup."""
    return render(markdown, _PLAIN)


def telegram(markdown: str) -> str:
    """Telegram's HTML style (https://core.telegram.org/bots/api#html-style)."""
    return render(markdown, _TELEGRAM)


def discord(markdown: str) -> str:
    """Discord's Markdown, in which nobody is called."""
    return render(markdown, _DISCORD)


def slack(markdown: str) -> str:
    """Slack's mrkdwn (https://docs.slack.dev/messaging/formatting-message-text), in which nobody is called."""
    return render(markdown, _SLACK)


def whatsapp(markdown: str) -> str:
    """WhatsApp's marks."""
    return render(markdown, _WHATSAPP)


def html(markdown: str) -> str:
    """HTML with the few elements that mail and Matrix clients show, its lines broken by ``<br>``."""
    parts = re.split(r"(<pre>.*?</pre>)", render(markdown, _HTML), flags=re.DOTALL)
    return "".join(one if one.startswith("<pre>") else one.replace("\n", "<br>") for one in parts)
