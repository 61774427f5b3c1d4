"""Normal forms of texts with long runs of combining marks, and the decoding of long texts."""

from __future__ import annotations

import asyncio
import sys
import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.characters import decode, normalize

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


@given(
    st.binary(max_size=50), st.sampled_from(("utf-8", "utf-16", "utf-32", "gb18030", "iso2022_jp", "cp1253"))
)
def test_pieces_are_decoded_like_the_whole(data: bytes, encoding: str) -> None:
    long = data * (40_000 // (len(data) or 1))

    assert decode(long, encoding) == long.decode(encoding, "replace")


async def test_other_work_continues_while_invalid_bytes_are_decoded() -> None:
    decoding = asyncio.create_task(asyncio.to_thread(decode, b"\x81" * 4 * 1024 * 1024, "cp1253"))
    turns = 0
    while not (await asyncio.wait({decoding}, timeout=0.001))[0]:
        turns += 1

    assert turns > 20


def test_codecs_that_are_not_for_text_are_refused() -> None:
    with pytest.raises(LookupError):
        decode(b"x", "zip")
