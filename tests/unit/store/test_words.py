from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.store.engine.tokenizer import TEXT_LIMIT, WORD_LIMIT, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Hello, World!", ["hello", "world"], id="case and punctuation"),
        pytest.param("query_json v2", ["query", "json", "v2"], id="an underscore separates, a digit does not"),
        pytest.param(
            "my sister's and the sisters’ names", ["my", "sister", "and", "the", "sister", "name"], id="s"
        ),
        pytest.param("cities miles bus glass", ["city", "mile", "bus", "glass"], id="plurals"),
        pytest.param("Ｆｕｌｌ ｶﾞ ﬁne", ["full", "ガ", "fine"], id="compatibility forms"),
        pytest.param("Straße ÉCOLE", ["strasse", "ecole"], id="case and marks"),
        pytest.param("東京タワー", ["東京", "京タ", "タワ", "ワー"], id="Japanese"),
        pytest.param("我爱北京 Beijing", ["我爱", "爱北", "北京", "beijing"], id="Chinese beside Latin"),
        pytest.param("猫", ["猫"], id="a lone ideograph"),
        pytest.param("مرحبا بالعالم", ["مرحبا", "بالعالم"], id="Arabic"),
        pytest.param("हिन्दी", ["हिन्दी"], id="marks belong to their letters"),
        pytest.param("서울 날씨", ["서울", "날씨"], id="Korean has spaces"),
        pytest.param(
            "👍🏽🇮🇹🇫🇷 ❤️", ["👍🏽", "🇮🇹", "🇫🇷", "❤"], id="emoji: skin tone, flags, style selector dropped"
        ),
        pytest.param("hi👩‍👩‍👧there", ["hi", "👩‍👩‍👧", "there"], id="a family is one emoji"),
        pytest.param("co\u00adoperate", ["cooperate"], id="soft hyphen"),
        pytest.param("\ud800 \0 -- ", [], id="nothing to match by"),
    ],
)
def test_text_is_split_into_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_texts_and_words_are_cut_at_their_limits() -> None:
    assert words("a " * TEXT_LIMIT + "end")[-1] == "a"
    assert words("x" * 1000) == ["x" * WORD_LIMIT]
    assert len(words("\ufdfa" * TEXT_LIMIT)) <= TEXT_LIMIT, "one code point may become eighteen"


@given(st.text())
def test_words_do_not_depend_on_the_normal_form(text: str) -> None:
    assert words(unicodedata.normalize("NFD", text)) == words(unicodedata.normalize("NFC", text))


@given(st.text(st.characters(categories=["L", "N", "M", "S", "Z", "P", "C"])))
def test_no_word_holds_a_separator_or_exceeds_its_limit(text: str) -> None:
    for word in words(text):
        assert 0 < len(word) <= WORD_LIMIT
        assert not any(unicodedata.category(character).startswith("Z") for character in word)
