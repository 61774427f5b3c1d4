"""The errors of providers for requests that exceed the context window."""

from __future__ import annotations

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelContextWindowExceededError, ModelHTTPError

from torana.models.context_overflow import Overflow, overflow_of
from torana.models.failures import explain

WORDINGS = [
    pytest.param(
        {
            "code": 400,
            "message": "request (5012 tokens) exceeds the available context size (2048 tokens), "
            "try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 5012,
            "n_ctx": 2048,
        },
        Overflow(window=2048, asked=5012),
        id="llama.cpp",
    ),
    pytest.param(
        {
            "message": "This model's maximum context length is 4096 tokens. However, your messages resulted in "
            "5012 tokens. Please reduce the length of the messages.",
            "code": "context_length_exceeded",
        },
        Overflow(window=4096, asked=5012),
        id="OpenAI",
    ),
    pytest.param(
        {"message": "prompt is too long: 210000 tokens > 200000 maximum"},
        Overflow(window=200_000, asked=210_000),
        id="Anthropic",
    ),
    pytest.param(
        "Trying to keep the first 5012 tokens when context the overflows. However, the model is loaded with "
        "context length of only 4096 tokens, which is not enough.",
        Overflow(window=4096),
        id="LM Studio",
    ),
    pytest.param(
        {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."},
        Overflow(window=1_048_576, asked=1_200_000),
        id="Google",
    ),
    pytest.param(
        {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5012"},
        Overflow(window=4096),
        id="TGI",
    ),
    pytest.param(
        {"message": "The input (5012 tokens) is longer than the model's context length (4096 tokens)."},
        Overflow(window=4096),
        id="SGLang",
    ),
    pytest.param(
        {"message": "the prompt is too long; the input length exceeds the context length"},
        Overflow(),
        id="Ollama",
    ),
    pytest.param(
        {"message": f"maximum context length is {'9' * 5_000}"},
        Overflow(window=int("9" * 20)),
        id="an integer that Python does not read",
    ),
]


@pytest.mark.parametrize(("body", "overflow"), WORDINGS)
def test_overflow_is_recognised_with_the_stated_sizes(body: object, overflow: Overflow) -> None:
    assert overflow_of(ModelHTTPError(400, "m", body)) == overflow


@pytest.mark.parametrize(("body", "overflow"), WORDINGS)
def test_overflow_is_explained_with_the_setting(body: object, overflow: Overflow) -> None:
    told = explain(ModelHTTPError(400, "m", body)).detail

    assert "TORANA_CONTEXT_WINDOW" in told
    assert overflow.window is None or f"of {overflow.window} tokens" in told


@pytest.mark.parametrize(
    "error",
    [
        ModelHTTPError(400, "m", {"message": "max_tokens must be at most 4096"}),
        ModelHTTPError(401, "m", {"message": "the context length 4096 is exceeded"}),
        ModelHTTPError(429, "m", {"message": "Too many tokens per minute; the limit is 4096"}),
        ModelHTTPError(500, "m", {"message": "internal error"}),
        ModelAPIError("m", "connection lost"),
        ValueError("maximum context length is 4096"),
    ],
)
def test_other_errors_are_not_overflows(error: Exception) -> None:
    assert overflow_of(error) is None


def test_overflow_that_the_library_recognises_needs_no_wording() -> None:
    assert overflow_of(ModelContextWindowExceededError("m", "too much")) == Overflow()
