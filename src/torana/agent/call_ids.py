"""Make the ids of tool calls safe for URLs and unique within a turn."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Set
from dataclasses import replace
from itertools import count

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ToolCallPart

#: Printable ASCII without the characters that are special in a URL (space, slash, backslash, #, % and ?); not
#: "." or "..".
_PLAIN = re.compile(r"""(?!\.{1,2}$)[!"$&-.0->@-\[\]-~]{1,64}""")

#: Length of a replacement id: Mistral accepts no other, and every provider accepts it.
_LENGTH = 9


def with_unique_ids(response: ModelResponse, *, taken: Set[str], step: int) -> ModelResponse:
    """Return the response with URL-safe call ids that are neither in ``taken`` nor repeated.

    Valid ids stay. The others are replaced by ids that depend only on the step, the position and the old id.
    """
    seen = set(taken)

    def unique(place: int, part: ModelResponsePart) -> ModelResponsePart:
        if not isinstance(part, ToolCallPart):
            return part
        id_ = part.tool_call_id
        if id_ in seen or not _PLAIN.fullmatch(id_):
            id_ = _new_id(id_, step, place, seen)
        seen.add(id_)
        return part if id_ == part.tool_call_id else replace(part, tool_call_id=id_)

    parts = [unique(place, part) for place, part in enumerate(response.parts)]
    return replace(response, parts=parts) if parts != list(response.parts) else response


def _new_id(old: str, step: int, place: int, seen: Set[str]) -> str:
    names = (f"{step} {place} {attempt} {old}" for attempt in count())
    digests = (hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest() for name in names)
    return next(digest[:_LENGTH] for digest in digests if digest[:_LENGTH] not in seen)
