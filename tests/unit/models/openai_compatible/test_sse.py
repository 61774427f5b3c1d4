"""Server-sent events from pieces of any size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.models.openai_compatible.stream import event_data


async def read(pieces: Sequence[bytes]) -> list[str]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [data async for data in event_data(body())]


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"data: a\n\ndata:b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", ["a", "b", "c"]),
        (b"data: a\ndata\ndata: b\n\n", ["a\n\nb"]),
        (b"data:  a \n\n", [" a "]),
        (b": note\nid: 1\nevent: x\nretry: 5\n\ndata: a\n\n", ["a"]),
        (b"datum: a\n\n\n\n", []),
        (b"data: unfinished\n", []),
        (b"data: a\xe2\x80\xa8b\xc2\x85c\x0bd\n\n", ["a\u2028b\x85c\x0bd"]),
    ],
)
async def test_data_of_each_event_is_read(body: bytes, data: list[str]) -> None:
    assert await read([body]) == data


async def test_invalid_unicode_is_an_error() -> None:
    with pytest.raises(UnicodeDecodeError):
        await read([b"data: \xff\n\n"])


@given(body=st.lists(st.sampled_from([b"data: ", b"\n", b"\r", b"\r\n", b"x", b":"])))
async def test_division_into_pieces_does_not_matter(body: list[bytes]) -> None:
    whole = b"".join(body)

    assert await read([bytes([byte]) for byte in whole]) == await read([whole])
