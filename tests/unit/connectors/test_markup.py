"""Markdown in each platform's markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.connectors.transport import markup

TEXT = """\
# Result

It is **4**, _surely_, ~~not 5~~: `2 < 3`. See [the sum](https://example.org/?a=1&b=2).

- one
  - inner
- two

3. three
4. four

> said `before`

```py
if a < b: print("```")
```

| a | b |
|---|---|
| 1 | @everyone <@7> |
"""

DIALECTS = [markup.plain, markup.telegram, markup.discord, markup.slack, markup.whatsapp, markup.html]

#: Characters with a meaning in Markdown.
_marks = st.sampled_from(
    ["*", "_", "`", "```\n", "> ", "- ", "1. ", "[", "](", ")", "<b>", "\n", "\n\n", "|", "@"]
)
hostile = st.lists(st.one_of(_marks, st.text(max_size=5)), max_size=40).map("".join)


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (markup.plain, "It is 4, surely, not 5: 2 < 3. See the sum (https://example.org/?a=1&b=2)."),
        (
            markup.telegram,
            (
                "It is <b>4</b>, <i>surely</i>, <s>not 5</s>: <code>2 &lt; 3</code>. See "
                '<a href="https://example.org/?a=1&amp;b=2">the sum</a>.'
            ),
        ),
        (
            markup.discord,
            "It is **4**, *surely*, ~~not 5~~: `2 < 3`. See the sum (<https://example.org/?a=1&b=2>).",
        ),
        (
            markup.slack,
            "It is *4*, _surely_, ~not 5~: `2 &lt; 3`. See <https://example.org/?a=1&amp;b=2|the sum>.",
        ),
        (
            markup.whatsapp,
            "It is *4*, _surely_, ~not 5~: `2 < 3`. See the sum (https://example.org/?a=1&b=2).",
        ),
    ],
)
def test_inline_markup_is_rendered(dialect: Callable[[str], str], expected: str) -> None:
    assert dialect(TEXT).split("\n\n")[1] == expected


def test_blocks_are_separated_and_lists_keep_their_shape() -> None:
    assert markup.plain(TEXT).split("\n\n")[2:] == [
        "• one\n   • inner\n• two",
        "3. three\n4. four",
        "> said before",
        'if a < b: print("```")',
        "a | b\n1 | @everyone <@7>",
    ]


@pytest.mark.parametrize("dialect", [markup.discord, markup.slack, markup.whatsapp])
def test_fence_inside_code_does_not_end_code_block(dialect: Callable[[str], str]) -> None:
    assert dialect(TEXT).count("```") == 2


@pytest.mark.parametrize("dialect", [markup.discord, markup.slack, markup.whatsapp])
@pytest.mark.parametrize(
    "text", ["between ``` as", r"\`\`\`", "a ` and b", "[``` x](https://example.org/)", "**`` `**"]
)
def test_backticks_in_a_text_do_not_begin_code(dialect: Callable[[str], str], text: str) -> None:
    assert "`" not in dialect(text).replace(r"\`", "")


def test_mentions_are_disabled() -> None:
    assert "@everyone" not in markup.discord(TEXT)
    assert "<@7>" not in markup.discord(TEXT + "\n\n`<@7>`")
    assert "<!channel>" not in markup.slack("<!channel> `<!here>` \n```\n<!here>\n```")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_script_address_does_not_become_link(dialect: Callable[[str], str]) -> None:
    shown = dialect("[click](javascript:alert) ![p](data:text/html,x) [f](file:///etc/passwd)")

    assert 'href="' not in shown
    assert "<javascript" not in shown


@given(hostile)
def test_telegram_markup_closes_its_elements(text: str) -> None:
    shown = "".join(one for one in markup.telegram(text) if one.isprintable() or one == "\n")

    elements = {element.tag for element in ET.fromstring(f"<all>{shown}</all>").iter()}

    assert elements <= {"all", "b", "i", "s", "code", "pre", "a"}


@given(hostile)
def test_html_has_only_allowed_elements(text: str) -> None:
    shown = "".join(one for one in markup.html(text) if one.isprintable() or one == "\n")

    elements = {element.tag for element in ET.fromstring(f"<all>{shown.replace('<br>', '<br/>')}</all>").iter()}

    known = {"all", "strong", "em", "del", "code", "pre", "a", "blockquote", "br"}
    assert elements <= known


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ask @ana or (@bob)", "ask @\u200bana or (@\u200bbob)"),
        ("ask @**ana**", "ask @\u200b<b>ana</b>"),
        ("write to ana@example.org", "write to ana@example.org"),
        ("see https://example.org/@ana/1 and `@bob`", "see https://example.org/@ana/1 and <code>@bob</code>"),
    ],
)
def test_telegram_markup_disables_mentions(text: str, shown: str) -> None:
    assert markup.telegram(text) == shown
