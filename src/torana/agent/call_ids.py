"""Ids of tool calls: plain, and unique within a turn, whatever a provider sends."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Set
from dataclasses import replace
from itertools import count

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ToolCallPart

#: Printable ASCII without what means something in a URL (space, slash, backslash, #, % and ?); not "." or "..".
_PLAIN = re.compile(r"""(?!\.{1,2}$)[!"$&-.0->@-\[\]-~]{1,64}""")

#: Digits of an id that replaces another: the one length that Mistral takes, and no provider refuses.
_LENGTH = 9


def with_unique_ids(response: ModelResponse, *, taken: Set[str], step: int) -> ModelResponse:
    """Return the response with an id for each of its calls that is plain, and neither ``taken`` nor repeated.

    A call whose id is so already keeps it. The others get ids that follow from the step and the response alone.
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
