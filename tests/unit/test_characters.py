"""Normal forms of texts with long runs of combining marks."""

from __future__ import annotations

import sys
import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.characters import normalize

Form = Literal["NFC", "NFKC", "NFKD"]
FORMS: tuple[Form, ...] = ("NFC", "NFKC", "NFKD")


@given(st.text(max_size=30), st.sampled_from(FORMS))
def test_short_texts_have_the_normal_form_of_unicode(text: str, form: Form) -> None:
    assert normalize(form, text) == unicodedata.normalize(form, text)


@pytest.mark.parametrize("form", FORMS)
def test_runs_of_marks_are_bounded(form: Form) -> None:
    for mark in map(chr, range(sys.maxunicode + 1)):
        decomposed = unicodedata.normalize("NFKD", mark)
        if unicodedata.combining(decomposed[0]):
            normal = normalize(form, f"a{mark * 200}b")
            assert sum(unicodedata.combining(char) != 0 for char in normal) <= 90, f"{ord(mark):x}"
            assert normal.endswith("b")


def test_marks_of_each_letter_are_counted_separately() -> None:
    text = ("e" + "\u0301\u0323" * 15) * 3

    assert normalize("NFC", text) == unicodedata.normalize("NFC", text)
