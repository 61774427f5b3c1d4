"""The digest of a call, and what is seen of its arguments."""

from __future__ import annotations

import hashlib

import pytest

from torana.store.questions import arguments_text, call_digest, question_text


def test_digest_is_that_of_the_canonical_json() -> None:
    digest = call_digest("pay", {"to": "ana é", "amount": 5})

    canonical = b'{"arguments":{"amount":5,"to":"ana \\u00e9"},"tool":"pay"}'
    assert digest == f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    assert call_digest("pay", {"amount": 5, "to": "ana é"}) == digest


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("play", {"amount": 5}),
        ("pay", {"amount": 6}),
        ("pay", {"amount": "5"}),
        ("pay", {}),
        ("pay", {"Amount": 5}),
    ],
)
def test_other_calls_have_other_digests(tool: str, arguments: dict[str, object]) -> None:
    assert call_digest(tool, arguments) != call_digest("pay", {"amount": 5})


def test_what_is_not_seen_is_written_out() -> None:
    tag, private = "\U000e0001", "\ue0001"

    assert arguments_text({"a\nb": "\x1b[2J\u202e é"}) == '{\n "a\\nb": "\\u001b[2J\\u202e é"\n}'
    assert arguments_text({"a": tag}) != arguments_text({"a": private})


def test_questions_differ_where_what_is_cut_off_differs() -> None:
    first, second = [question_text("pay", {"to": "x" * 2_000 + end}) for end in "ab"]

    assert first != second
    assert call_digest("pay", {"to": "x" * 2_000 + "a"}) in first
