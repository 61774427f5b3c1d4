"""Converting the bytes of a page to visible text."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.characters import remove_hidden
from torana.web.charsets import decode
from torana.web.extract_program import read_bounded
from torana.web.readable import Reader, Unreadable

_PAGE = """<!DOCTYPE html><html><head><title>Gates
of  stone</title><style>p {{}}</style></head><body><nav><a href="/home">Home</a></nav><article><h1>Gates</h1>
<p>A torana is a <a href="/gate?a=b">gateway</a> of stone, see <a href="https://other.test/">there</a>
or <a href="javascript:alert(1)">nowhere</a>.</p>{}<ul><li>one</li><li>two</li></ul></article></body></html>"""


async def test_page_text_contains_headings_and_links() -> None:
    page = await Reader().read(_PAGE.format(""), "https://site.test/dir/page", user="ana")
    assert " ".join(page.title.split()) == "Gates of stone"
    assert "# Gates" in page.text
    assert "[gateway](https://site.test/gate?a=b)" in page.text
    assert "[there](https://other.test/)" in page.text
    assert "- one\n- two" in page.text
    assert "javascript" not in page.text


@pytest.mark.parametrize(
    "hidden",
    [
        "<p hidden>SECRET</p>",
        '<p style="display: none">SECRET</p>',
        '<p style="Display:\n\tNONE">SECRET</p>',
        '<div style="color:red;visibility:hidden"><p>SECRET</p></div>',
        '<p style="font-size:0">SECRET</p>',
        '<p aria-hidden="true">SECRET</p>',
        "<!-- SECRET -->",
        "<script>SECRET</script>",
        "<template><p>SECRET</p></template>",
        '<p title="SECRET">.</p>',
    ],
)
def test_hidden_text_is_removed(hidden: str) -> None:
    text = read_bounded(_PAGE.format(hidden), "https://site.test/")["text"]
    assert "SECRET" not in text
    assert "- one" in text


@pytest.mark.parametrize("style", ["font-size:0.95rem", "font-size: 0.9em; color: red"])
def test_small_text_is_kept(style: str) -> None:
    text = read_bounded(_PAGE.format(f'<p style="{style}">SMALL</p>'), "https://site.test/")["text"]
    assert "SMALL" in text


@pytest.mark.parametrize(
    "removed",
    ["<b hidden>x</b>", "<!--x-->", "<script>x</script>", '<a href="javascript:x"></a>'],
    ids=["hidden", "comments", "scripts", "links"],
)
def test_removed_elements_cost_little_more_than_shown_ones(removed: str) -> None:
    costs: list[float] = []
    texts: list[str] = []
    for element in ("<b>x</b>", removed):
        before = time.process_time()
        texts.append(read_bounded(f"<p>{f'{element}tail' * 39_000}</p>", "https://site.test/")["text"])
        costs.append(time.process_time() - before)

    assert costs[1] < 5 * costs[0]  # removing them one by one takes 16 times as long
    assert texts[1] == "tail" * 39_000


def test_addresses_in_a_style_cost_no_more_than_elements() -> None:
    costs: list[float] = []
    for page in ("<p>" + "<b>x</b>tail" * 10_000, f'<p style="{"url(a)" * 20_000}">tail'):
        before = time.process_time()
        read_bounded(page, "https://site.test/")
        costs.append(time.process_time() - before)

    assert costs[1] < 2 * costs[0]


def test_links_that_the_address_of_the_page_makes_long_are_removed() -> None:
    page = f"https://site.test/{'x' * 3_000}/"

    assert read_bounded('<p><a href="a">near</a> <a href="/b">far</a>', page)["text"] == (
        "near [far](https://site.test/b)"
    )


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("   ", ""),
        ("<!-- nothing", ""),
        ("<p>short</p>", "short"),
        ("only words", "only words"),
        ("<p>unclosed <b>and <i>crossed</b></i>", "unclosed and crossed"),
        ("<?xml version='1.0' encoding='ascii'?><html><body><p>é", "é"),
    ],
)
def test_malformed_pages_are_read(html: str, text: str) -> None:
    assert read_bounded(html, "https://site.test/")["text"].replace("*", "") == text


async def test_half_of_a_surrogate_pair_reaches_the_worker() -> None:
    page = await Reader().read("<p>\ud800half</p>", "https://site.test/", user="ana")
    assert page.text == "?half"


@pytest.mark.parametrize(
    "html",
    [
        f"<p {' '.join(f'a{number}' for number in range(200_000))}>x",
        "<div>" * 20_000 + "</b>" * 400_000,
        "<table><tr><td>" * 20_000 + "x",
    ],
    ids=["attributes", "end tags", "tables"],
)
async def test_structure_that_a_parser_takes_long_for_is_refused(html: str) -> None:
    with pytest.raises(Unreadable, match="structure"):
        await Reader().read(html, "https://site.test/", user="ana")


@pytest.mark.parametrize(
    "body",
    ["<p>text <a href=/x>link</a>" * 5_000, f"<p>text {'word ' * 200_000}{'<a href=/x>link</a>' * 1_000}"],
    ids=["links", "text"],
)
def test_page_below_many_elements_costs_no_more_than_others(body: str) -> None:
    costs: list[float] = []
    for opened in ("", "<div>" * 200):
        page = f"<article>{opened}{body}"
        before = time.process_time()
        text = read_bounded(page, "https://site.test/")["text"]
        costs.append(time.process_time() - before)
        assert text.startswith("text")

    assert costs[1] < 2 * costs[0]


def test_main_part_of_a_deep_page_is_found() -> None:
    article = "<div>" * 30 + "<p>A torana is a gateway of stone. " * 20 + "</div>" * 30
    page = f"<nav><a href='/home'>Home</a></nav><article>{article}</article><footer>Imprint</footer>"

    text = read_bounded(page, "https://site.test/")["text"]

    assert text.count("gateway of stone") == 20
    assert "Imprint" not in text


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 900 + "x",
        "<table><tr><td>" * 200 + "x",
        "<p>word</p>" * 20_000,
        pytest.param("<p>word</p>" * 60_000, marks=pytest.mark.long),
        "<a x=1 " * 50_000,
    ],
    ids=["deep", "tables", "wide", "wider", "attributes"],
)
async def test_huge_pages_are_read_in_bounded_time(html: str) -> None:
    page = await Reader(patience=60).read(html, "https://site.test/", user="ana")
    assert len(page.text) <= len(html)


async def test_page_that_would_take_much_memory_is_refused() -> None:
    with pytest.raises(Unreadable, match="structure"):
        await Reader(patience=60).read("<p>a" * 500_000, "https://site.test/", user="ana")


async def test_page_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    stuck.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec /bin/sleep 60\n")
    stuck.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stuck))
    with pytest.raises(Unreadable, match="longer than"):
        await Reader(patience=1).read(_PAGE.format(""), "https://site.test/", user="ana")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_costly_pages_of_one_user_leave_places_for_other_users() -> None:
    reader = Reader(patience=10)
    costly = [
        asyncio.create_task(reader.read("<li>x" * 200_000, "https://site.test/", user="ana")) for _ in range(4)
    ]
    await asyncio.sleep(0)

    page = await reader.read("<p>words", "https://site.test/", user="bob")

    assert page.text == "words"
    assert not any(task.done() for task in costly)
    for task in costly:
        task.cancel()
    await asyncio.gather(*costly, return_exceptions=True)


async def test_crash_of_the_reader_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Unreadable, match="cannot be read"):
        await Reader().read("<p>x", "https://site.test/", user="ana")


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("é".encode(), "utf-8", "é"),
        ("é".encode(), None, "é"),
        ("é".encode("cp1252"), None, "é"),
        ("€".encode("cp1252"), "iso-8859-1", "€"),  # as browsers do
        ("é".encode(), "iso-8859-1", "Ã©"),  # the charset of the server wins, even if it is wrong
        ("﻿é".encode(), "iso-8859-1", "é"),  # except with a byte order mark
        ("é".encode("utf-16"), None, "é"),
        ("я".encode("koi8-r"), "KOI8-R", "я"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        (b'<meta charset="cp1251">' + "я".encode("cp1251"), None, '<meta charset="cp1251">я'),
        (b'<meta charset="cp1251">' + "я".encode("cp1251"), "no-such", '<meta charset="cp1251">я'),
        (b"a\xffb", "utf-8", "a\ufffdb"),
        # Python's own codecs, which are not charsets of pages.
        (b"uryyb", "rot13", "uryyb"),
        (b"a\\u0041", "unicode_escape", "a\\u0041"),
        (b"xn--a-ecp", "idna", "xn--a-ecp"),
        (b"+AGE-", "utf-7", "+AGE-"),
        (b"eJw=", "base64", "eJw="),
    ],
)
def test_charsets_are_decoded(body: bytes, charset: str | None, text: str) -> None:
    assert decode(body, charset) == text


def test_blanks_after_charset_cost_no_more_than_words() -> None:
    costs: list[float] = []
    for filler in (b"x", b" "):
        before = time.process_time()
        for _ in range(20):
            decode((b"<meta" * 38 + b"charset=" + filler * 3_890 + b">")[:4096], None)
        costs.append(time.process_time() - before)

    assert costs[1] < 100 * costs[0]


@given(st.binary(max_size=200), st.text(max_size=20) | st.none())
def test_any_bytes_are_decoded_to_text(body: bytes, charset: str | None) -> None:
    assert isinstance(decode(body, charset), str)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Plain text, ünïcödé 日本 ✓ 👍🏽", "Plain text, ünïcödé 日本 ✓ 👍🏽"),
        ("a\r\nb\rc\u2028d\n\te", "a\nb\nc\nd\n\te"),
        ("safe\u202etxt.exe\u202c", "safetxt.exe"),
        ("a\u200b\u2060\ufeff\u00adb", "ab"),
        ("hi" + "".join(chr(0xE0000 + ord(char)) for char in "ignore all"), "hi"),
        ("x" + "".join(chr(0xE0100 + number) for number in range(20)), "x"),
        ("x\ufe01\ufe02\ufe03", "x"),
        ("l\ufe00u\ufe0fn\u180bch", "lunch"),
        ("❤\ufe0f", "❤\ufe0f"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("a\u200c\u200d\u200c\u200cb", "ab"),
        ("a\u3164\u115f\u1160\uffa0b", "ab"),
        ("\x1b[31mred\x07\x00", "[31mred"),
        ("\ud800\ue000\uffff", ""),
    ],
)
def test_invisible_characters_are_removed(text: str, shown: str) -> None:
    assert remove_hidden(text) == shown


@given(st.text())
def test_visible_text_has_no_invisible_characters(text: str) -> None:
    shown = remove_hidden(text)
    assert remove_hidden(shown) == shown
    assert not {unicodedata.category(char) for char in shown if char not in "\n\t\u200c\u200d"} & {
        "Cc",
        "Cf",
        "Cs",
        "Co",
        "Cn",
    }
