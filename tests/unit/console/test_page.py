"""The page runs its own script, loads nothing, and has all texts in all languages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import torana.console
from torana.console.page import LANGUAGES, build_page

ROOT = Path(torana.console.__file__).parent
MODULES = sorted((ROOT / "app").rglob("*.js"))

#: Texts that are the same in each language: the product, its commands, and signs.
SAME = re.compile(r"Torana|torana console|[^\w]|_|\x00")


@cache
def texts(language: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((ROOT / "languages" / f"{language}.json").read_text())
    return found


def test_policy_allows_the_script_and_the_style_of_the_page_alone() -> None:
    page = build_page({"version": "1"})
    html = page.body.decode()
    (script,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)

    assert f"script-src '{digest(script)}';" in page.policy
    assert f"style-src '{digest(style)}';" in page.policy
    assert page.policy.startswith("default-src 'none';")
    assert "unsafe" not in page.policy


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_page_names_no_other_origin() -> None:
    html = build_page({"version": "1"}).body.decode()
    head = html.partition("<script")[0]

    assert re.findall(r'\b(?:src|href)="(?:\w+:)?//', head) == []
    assert not re.search(r"url\(|@import", head)


def test_values_cannot_end_the_script_element() -> None:
    html = build_page({"version": "</script><script>alert(1)</script>"}).body.decode()

    assert "alert(1)" in html
    assert html.count("</script>") == 2


@pytest.mark.parametrize("language", LANGUAGES)
def test_language_has_all_texts_with_their_values(language: str) -> None:
    assert list(texts(language)) == sorted(texts("en"))
    for key, text in texts(language).items():
        assert text.strip(), key
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", texts("en")[key])), key


def test_every_text_of_a_module_exists() -> None:
    for path in MODULES:
        for key in re.findall(r'\bt\("([^"]+)"', path.read_text()):
            assert key in texts("en"), f"{path}: {key}"
        for key in re.findall(r'\bplural\("([^"]+)"', path.read_text()):
            assert {f"{key}.one", f"{key}.other"} <= set(texts("en")), f"{path}: {key}"


def composed_prefixes(source: str) -> tuple[str, ...]:
    return tuple(re.findall(r"t\(`([\w.]+[._])\$\{", source) + re.findall(r"= `([\w.]+\.)\$\{", source))


def test_text_of_a_composed_key_is_found_by_its_key() -> None:
    html = build_page({"version": "1"}).body.decode()
    prefixes = composed_prefixes("\n".join(path.read_text() for path in MODULES))
    (data,) = re.findall(r'<script type="application/json".*?>(.*?)</script>', html)
    named = json.loads(data)["texts"]["composed"]

    assert {key for key in texts("en") if key.startswith(prefixes)} <= set(named.split())


def test_every_text_is_used() -> None:
    source = "\n".join(path.read_text() for path in MODULES)
    named = set(re.findall(r'"([a-z_]+\.[a-z_0-9]+)"', source))
    composed = composed_prefixes(source)
    plurals = {
        f"{key}.{form}" for key in re.findall(r'\bplural\("([^"]+)"', source) for form in ("one", "other")
    }
    unused = [key for key in texts("en") if key not in named | plurals and not key.startswith(composed)]

    assert unused == []


def test_components_contain_no_words_outside_of_the_texts() -> None:
    for path in MODULES:
        for template in templates(path.read_text()):
            words = SAME.sub("", re.sub(r"<[^<>]*>", " ", template))
            assert words == "", f"{path.name}: {words}"
            attributes = re.findall(r'(?:aria-label|title|placeholder|alt)="([^"]*)"', template)
            assert [one for one in attributes if SAME.sub("", one) not in ("", "https")] == [], path


def templates(source: str) -> Iterator[str]:
    """Yield each template of HTML in a module, with a zero byte in place of each expression."""
    open_templates: list[list[str]] = []
    braces: list[int] = []
    place = 0
    while place < len(source):
        inside = len(open_templates) > len(braces)
        if inside and source[place] == "`":
            yield from _without_code(open_templates.pop())
        elif inside and source.startswith("${", place):
            open_templates[-1].append("\0")
            braces.append(0)
            place += 1
        elif inside:
            open_templates[-1].append(source[place])
        elif source[place] == "`":
            open_templates.append([source[max(0, place - 4) : place]])
        elif braces and source[place] in "{}":
            braces[-1] += 1 if source[place] == "{" else -1
            if braces[-1] < 0:
                braces.pop()
        place += 1


def _without_code(template: list[str]) -> Iterator[str]:
    """Yield the text of a template if it is HTML."""
    if template[0] == "html":
        yield "".join(template[1:])
