"""A text that grows by pieces."""

import tracemalloc

from torana.agent.text import GrowingText


def test_growing_text_takes_little_more_memory_than_its_characters() -> None:
    tracemalloc.start()
    try:
        text = GrowingText("a")
        for number in range(200_000):
            text.append(chr(0x100 + number % 2))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert taken < 1_000_000
    assert text.length == 200_001
    assert str(text) == "a" + "\u0100\u0101" * 100_000


def test_growing_text_can_be_read_while_it_grows() -> None:
    text, expected = GrowingText(), ""
    for number in range(1_000):
        piece = str(number)
        text.append(piece)
        expected += piece
        if number % 7 == 0:
            assert str(text) == expected
    assert str(text) is str(text)
