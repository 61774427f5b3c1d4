"""Ids of tool calls: plain, and unique within a turn, whatever a provider sends."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Set
from dataclasses import replace
from itertools import count

from pydantic_ai.messages import ModelResponse, ToolCallPart

#: Printable ASCII that stands for itself in a path: no space, slash or backslash, and neither "." nor "..".
_PLAIN = re.compile(r"(?!\.{1,2}$)[!-.0-\[\]-~]{1,64}")

#: Digits of an id that replaces another: the one length that Mistral takes, and no provider refuses.
_LENGTH = 9


def with_unique_ids(response: ModelResponse, *, taken: Set[str], step: int) -> ModelResponse:
    """Return the response with an id for each of its calls that is plain, and neither ``taken`` nor repeated.

    A call whose id is so already keeps it. The others get ids that follow from the step and the response alone.
    """
    seen = set(taken)
    parts = list(response.parts)
    for place, part in enumerate(parts):
        if isinstance(part, ToolCallPart):
            if part.tool_call_id in seen or not _PLAIN.fullmatch(part.tool_call_id):
                parts[place] = replace(part, tool_call_id=_new_id(part.tool_call_id, step, place, seen))
            seen.add(parts[place].tool_call_id)
    return replace(response, parts=parts) if parts != list(response.parts) else response


def _new_id(old: str, step: int, place: int, seen: Set[str]) -> str:
    names = (f"{step} {place} {attempt} {old}" for attempt in count())
    digests = (hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest() for name in names)
    return next(digest[:_LENGTH] for digest in digests if digest[:_LENGTH] not in seen)
