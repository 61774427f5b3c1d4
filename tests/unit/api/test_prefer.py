import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.api.preferences import Preferences, read_key, read_preferences
from torana.errors import InvalidField


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Preferences()),
        (["respond-async"], Preferences(respond_async=True)),
        (["Respond-Async , WAIT = 5"], Preferences(respond_async=True, wait=5)),
        (["respond-async", "wait=5"], Preferences(respond_async=True, wait=5)),
        (['wait="7"'], Preferences(wait=7)),
        (["wait=5; strict"], Preferences(wait=5)),
        (["wait=5, wait=9"], Preferences(wait=5)),  # RFC 7240, 2: the first counts
        (["wait=999999999"], Preferences(wait=86_400)),
        (["cancel-on-disconnect"], Preferences(cancel_on_disconnect=True)),
        (["return=minimal, handling=lenient, x"], Preferences()),
        (['note="a, respond-async, b"'], Preferences()),
        (['note="a\\", respond-async, b", wait=3'], Preferences(wait=3)),
    ],
)
def test_known_preferences_are_read_and_others_ignored(values: list[str], expected: Preferences):
    assert read_preferences(values) == expected


@pytest.mark.parametrize("wait", ["", "-1", "1.5", "soon", "5s", "٣", "9" * 5_000, "5 5"])
def test_invalid_wait_is_ignored(wait: str):
    assert read_preferences([f"wait={wait}", "respond-async"]) == Preferences(respond_async=True)


def test_only_the_beginning_of_long_headers_is_read():
    assert read_preferences(["wait=5" + "," * 60_000 + "respond-async"]) == Preferences(wait=5)


@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=255)), max_size=3))
def test_any_prefer_header_is_accepted(values: list[str]):
    read_preferences(values)


def test_response_header_lists_applied_preferences():
    assert Preferences(respond_async=True).applied_header == {"Preference-Applied": "respond-async"}
    both = Preferences(respond_async=True, wait=5)
    assert both.applied_header == {"Preference-Applied": "respond-async, wait=5"}


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("k1", "k1"),
        ('"k1"', "k1"),
        ('  "k1"  ', "k1"),
        ('"with a space"', "with a space"),
        (r'"a\"b\\c"', 'a"b\\c'),
        (r"a\b", r"a\b"),  # a bare one is taken as it is
        ("x" * 255, "x" * 255),
        (f'"{"x" * 255}"', "x" * 255),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    ],
)
def test_idempotency_key_may_be_quoted_or_bare(value: str, key: str):
    assert read_key([value]) == key


@pytest.mark.parametrize(
    "values",
    [
        [""],
        ["  "],
        ['""'],
        ["x" * 256],
        ["two words"],
        ['"open'],
        ['shut"'],
        ['"a"b"'],
        ["é"],
        ["a\tb"],
        ["a", "b"],
    ],
)
def test_invalid_idempotency_key_is_refused(values: list[str]):
    with pytest.raises(InvalidField, match="Idempotency-Key"):
        read_key(values)


def test_missing_idempotency_key_is_none():
    assert read_key([]) is None


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255))
def test_quoted_printable_text_is_idempotency_key(key: str):
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    assert read_key([f'"{escaped}"']) == key
