"""Recognise a provider's error for a request that exceeds the model's context window."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError, ModelContextWindowExceededError, ModelHTTPError

#: Status codes with which servers report the error. Old versions of llama.cpp and LM Studio answer 500.
_STATUSES = frozenset({400, 413, 422, 500})

#: Characters of an error that are searched.
_SEARCHED = 10_000

#: The wordings of llama.cpp, LM Studio, Ollama, vLLM, SGLang, TGI, OpenAI, Anthropic, Google, Mistral, Cohere.
_WORDINGS = re.compile(
    r"exceed_context_size"
    r"|context_length_exceeded"
    r"|exceeds? (?:the |this |your )?(?:available |model'?s? |maximum |max )*context"
    r"|(?:maximum|max|model'?s?) context (?:length|window|size)"
    r"|context (?:length|window|size)[^.]{0,40} (?:exceeded|overflow|is (?:too )?small|not big enough)"
    r"|greater than the context (?:length|window|size)"
    r"|longer than the (?:model'?s |maximum )*context"
    r"|context the overflows"
    r"|(?:prompt|input|request|message)s? (?:is|are) too (?:long|large)\b"
    r"|too many (?:input )?tokens"
    r"|input token count .{0,40}exceeds"
    r"|(?:inputs?|prompt)`? (?:tokens|length).{0,60} (?:must be|exceeds?|is greater)"
    r"|reduce the length of the (?:messages|prompt|input)",
    re.IGNORECASE,
)

#: The window, in these wordings.
_LIMITS = (
    r'"n_ctx":\s*(\d+)',
    r"context (?:length|window|size)[^\d]{0,30}(\d[\d,]*)",
    r"(?:maximum|max)[^\d.]{0,60}?\b(\d[\d,]*)",
    r"[<>]=?\s*(\d[\d,]*)",
)
#: The tokens of the refused request.
_ASKED = (
    r'"n_prompt_tokens":\s*(\d+)',
    r"request \((\d+) tokens\)",
    r"messages resulted in (\d[\d,]*) tokens",
    r"(?:too long|input token count)[^\d]{0,12}(\d[\d,]*)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A refused request: the model's context window and the tokens of the request, as far as stated."""

    window: int | None = None
    asked: int | None = None


def overflow_of(error: BaseException) -> Overflow | None:
    """Return the stated sizes if a request exceeded the context window; None for any other error."""
    if not isinstance(error, ModelAPIError):
        return None
    text = _text_of(error)[:_SEARCHED]
    is_refusal = not isinstance(error, ModelHTTPError) or error.status_code in _STATUSES
    if not isinstance(error, ModelContextWindowExceededError) and not (is_refusal and _WORDINGS.search(text)):
        return None
    return Overflow(window=_first_number(_LIMITS, text), asked=_first_number(_ASKED, text))


def _text_of(error: ModelAPIError) -> str:
    body: object = getattr(error, "body", None)
    if isinstance(body, Mapping):
        return json.dumps(dict(cast("Mapping[str, Any]", body)), default=str, ensure_ascii=False)
    return error.message if body is None else str(body)


def _first_number(patterns: tuple[str, ...], text: str) -> int | None:
    found = next(filter(None, (re.search(pattern, text, re.IGNORECASE) for pattern in patterns)), None)
    number = int(found[1][:20].replace(",", "")) if found else 0
    return number or None
