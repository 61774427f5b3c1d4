"""Convert Markdown, as models write it, to the markup of each platform.

Each function accepts any text: elements that the platform does not support become plain text, and the result
contains no mentions and no executable content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from torana.connectors.transport.markdown import parse

if TYPE_CHECKING:
    from markdown_it.token import Token

#: URL schemes of links; other links become plain text.
_SAFE = re.compile(r"(https?|mailto|tel|matrix):", re.IGNORECASE)

#: Limit for the total length of all URLs: characters of URL for each character of the text. A non-ASCII
#: character takes up to twelve in a URL. Without a limit, a URL that is defined once and used often could turn
#: a short text into megabytes; beyond the limit only the words of links are shown.
_ADDRESSES = 12

#: Characters that have a meaning in Discord's Markdown.
_SPECIAL = re.compile(r"[*_~`|>\\\[\]#<-]")

#: More than ten nested quotations and lists on one line.
_LEVEL = r"[ \t]{0,3}(?:>|[-*+][ \t]|\d{1,9}[.)][ \t])"
_DEEP_NESTING = re.compile(rf"^((?:{_LEVEL}){{10}})(?={_LEVEL})", re.MULTILINE)
#: An invisible character. Behind it, no quotation and no list begins.
_WORD_JOINER = "\u2060"
#: A line that begins a code block and has a long info string, which would not be shown.
_LONG_INFO = re.compile(r"^( {0,3})(?=(?:`{3,}[^`\n]{41,}|~{3,}[^\n]{41,})$)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A platform's markup. ``marks`` maps Markdown's element names to the text before and after."""

    text: Callable[[str], str] = str
    marks: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    #: The text before and after a code block, and functions that escape block code and inline code.
    block: tuple[str, str] = ("", "")
    code: Callable[[str], str] = str
    span: Callable[[str], str] = str
    #: Returns a link for a URL and its words, which are already in the dialect.
    link: Callable[[str, str], str] = lambda url, words: words if words == url else f"{words} ({url})"
    #: The prefix of each line of a quotation; None if ``marks`` contains ``blockquote``.
    quote: str | None = "> "

    def render(self, markdown: str) -> str:
        """Convert a text to the dialect, with empty lines between blocks."""
        renderer = _Renderer(self, addresses=_ADDRESSES * len(markdown))
        return renderer.blocks(parse(escape_unrendered(markdown))).strip("\n")


def escape_unrendered(markdown: str) -> str:
    """Change constructs whose text a Markdown parser would drop silently. The function is idempotent."""
    return _LONG_INFO.sub(r"\1\\", _DEEP_NESTING.sub(rf"\1{_WORD_JOINER}", markdown))


class _Renderer:
    def __init__(self, dialect: Dialect, *, addresses: int) -> None:
        """``addresses`` is the maximum total length of all URLs."""
        self._dialect = dialect
        self._addresses = addresses

    def blocks(self, tokens: Sequence[Token], *, tight: bool = False) -> str:
        """Render blocks with the blocks that they contain."""
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
                return self._wrap_mark("strong", self.blocks(inside))
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
            return self._wrap_mark("blockquote", body)
        return "\n".join(f"{prefix}{line}" for line in body.split("\n"))

    def _table(self, inside: Sequence[Token]) -> str:
        """Render a table as one line for each row: chat platforms have no tables."""
        rows: list[list[str]] = []
        for token in inside:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(self._inline(token.children or []))
        return "\n".join(" | ".join(row) for row in rows)

    def _inline(self, tokens: Sequence[Token]) -> str:
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
        return self._wrap_mark(token.tag, words)

    def _leaf(self, token: Token) -> str:
        match token.type:
            case "softbreak" | "hardbreak":
                return "\n"
            case "code_inline":
                return self._wrap_mark("code", self._dialect.span(token.content))
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

    def _wrap_mark(self, tag: str, body: str) -> str:
        before, behind = self._dialect.marks.get(tag, ("", ""))
        return f"{before}{body}{behind}" if body.strip() else body


def _end_of(tokens: Sequence[Token], at: int) -> int:
    depth = 0
    for place in range(at, len(tokens)):
        depth += tokens[place].nesting
        if depth <= 0:
            return place
    return len(tokens)


def _escape_fences(code: str) -> str:
    """Break fences inside a code block with an invisible character, so that they cannot end the block."""
    return code.replace("```", "`\u200b`\u200b`")


def _escape_backticks(text: str) -> str:
    """Replace backticks, so that they cannot end inline code, or begin code in a text."""
    return text.replace("`", "ˋ")


def _html(text: str) -> str:
    return escape(text, quote=False)


def _html_link(url: str, words: str) -> str:
    return f'<a href="{escape(url)}">{words}</a>'


plain = Dialect().render

#: An ``@`` that Telegram could read as a mention, also if the name is in the next piece of text. URLs are
#: matched first, so that an ``@`` in them stays.
_CALL = re.compile(r"https?://[\w.-]+\.\w{2,}/\S*|(?<!\w)@")


def _telegram_text(text: str) -> str:
    return _html(_CALL.sub(lambda found: "@\u200b" if found[0] == "@" else found[0], text))


#: Converts Markdown to Telegram's HTML style, which accepts only these tags
#: (https://core.telegram.org/bots/api#html-style).
telegram = Dialect(
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
).render


def _break_mentions(text: str) -> str:
    """Break `@everyone` and `<@id>` with an invisible character, so that they mention no user."""
    return text.replace("@", "@\u200b")


#: Converts Markdown to Discord's Markdown, without mentions.
discord = Dialect(
    text=lambda text: _break_mentions(_SPECIAL.sub(r"\\\g<0>", text)),
    marks={"strong": ("**", "**"), "em": ("*", "*"), "s": ("~~", "~~"), "code": ("`", "`")},
    block=("```\n", "\n```"),
    code=lambda code: _break_mentions(_escape_fences(code)),
    span=lambda code: _break_mentions(_escape_backticks(code)),
    link=lambda url, words: words if words == url else f"{words} (<{url}>)",
).render


def _slack_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


#: Converts Markdown to Slack's mrkdwn (https://docs.slack.dev/messaging/formatting-message-text).
slack = Dialect(
    text=lambda text: _slack_text(_escape_backticks(text)),
    marks={"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~"), "code": ("`", "`")},
    block=("```\n", "\n```"),
    code=lambda code: _slack_text(_escape_fences(code)),
    span=lambda code: _slack_text(_escape_backticks(code)),
    link=lambda url, words: f"<{_slack_text(url).replace('|', '%7C')}|{words.replace('|', '¦')}>",
    quote="&gt; ",
).render

whatsapp = Dialect(
    text=_escape_backticks,
    marks={"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~"), "code": ("`", "`")},
    block=("```", "```"),
    code=_escape_fences,
    span=_escape_backticks,
).render

#: With this style mail programs wrap the lines of a code block, whose ends would otherwise be hidden.
_BLOCK = '<pre style="white-space: pre-wrap; overflow-wrap: anywhere"><code>'

_HTML = Dialect(
    text=_html,
    marks={
        "strong": ("<strong>", "</strong>"),
        "em": ("<em>", "</em>"),
        "s": ("<del>", "</del>"),
        "code": ("<code>", "</code>"),
        "blockquote": ("<blockquote>", "</blockquote>"),
    },
    block=(_BLOCK, "</code></pre>"),
    code=_html,
    span=_html,
    link=_html_link,
    quote=None,
)


def html(markdown: str) -> str:
    """Convert Markdown to the HTML that mail and Matrix clients show, with ``<br>`` for line ends."""
    parts = re.split(r"(<pre .*?</pre>)", _HTML.render(markdown), flags=re.DOTALL)
    return "".join(one if one.startswith("<pre ") else one.replace("\n", "<br>") for one in parts)
