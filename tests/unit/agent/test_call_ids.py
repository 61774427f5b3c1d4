"""Ids of tool calls are plain and unique within a turn, whatever a provider sends."""

from __future__ import annotations

import re

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from torana.agent.journal_hooks import with_unique_ids

IDS = st.one_of(
    st.sampled_from(["call_0", "c1", "", ".", "..", "a/b", "a\\b", "a b", "a?b#c%", "a\nb", "é"]), st.text()
)


def ids_of(response: ModelResponse) -> list[str]:
    return [call.tool_call_id for call in response.tool_calls]


def calling(*ids: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart("I see."), *(ToolCallPart("t", {}, tool_call_id=id_) for id_ in ids)])


@given(st.lists(st.lists(IDS, max_size=4), max_size=4))
def test_ids_are_plain_unique_and_deterministic(responses: list[list[str]]) -> None:
    def run() -> list[str]:
        taken: set[str] = set()
        for step, ids in enumerate(responses):
            response = with_unique_ids(calling(*ids), taken=taken, step=step)
            found.extend(ids_of(response))
            taken.update(ids_of(response))
        return found

    found: list[str] = []
    first = list(run())
    found.clear()

    assert run() == first
    assert len(set(first)) == len(first) == sum(map(len, responses))
    for id_ in first:
        assert re.fullmatch(r"[!-~]{1,64}", id_)
        assert httpx2.URL(f"http://h/approvals/{id_}").path == f"/approvals/{id_}"
        assert not set(id_) & set("/\\")
        assert id_ not in (".", "..")


@pytest.mark.parametrize(
    "id_", ["c1", "call_abc", "functions.pay:0", "D681PevKs", "pyd_ai_0af", "resp_1:call_2", "x" * 64]
)
def test_plain_id_is_kept(id_: str) -> None:
    response = calling(id_)

    assert with_unique_ids(response, taken=frozenset(), step=0) is response


def test_only_the_first_call_keeps_a_repeated_id() -> None:
    first, second = ids_of(with_unique_ids(calling("c", "c"), taken=frozenset(), step=0))
    (third,) = ids_of(with_unique_ids(calling("c"), taken={first, second}, step=1))

    assert first == "c"
    # Mistral accepts only ids of nine letters and digits.
    assert all(re.fullmatch("[0-9a-f]{9}", id_) for id_ in (second, third))
