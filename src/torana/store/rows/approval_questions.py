"""The text of an approval question in a chat, and the digest of its call."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from torana.characters import escape_unprintable, escape_unprintable_json
from torana.json_bounds import has_more_values

#: Maximum characters of a call's arguments in a chat.
_SHOWN = 1_500
#: Maximum number of values of which each has its own line.
_LINES = 200
#: A run of spaces that could move the text behind it out of the reader's view, in a JSON string: the spaces at
#: the start of a line are those of the JSON itself.
_GAP = re.compile(r"(?<=[^ \n]) {25,}")
#: Maximum characters of arguments in which only invisible characters are escaped.
_READABLE = 50_000

#: Maximum characters of the arguments of a call that a person can approve, as JSON in ASCII.
LONGEST_ARGUMENTS = 250_000


def call_digest(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the digest that identifies a call: ``sha256:`` and 64 hexadecimal digits.

    It is the SHA-256 of the JSON object of ``arguments`` and ``tool`` with sorted names, without spaces and
    with everything that is not ASCII escaped.
    """
    call = {"arguments": dict(arguments), "tool": tool}
    canonical = json.dumps(call, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def are_too_long(arguments: Mapping[str, Any]) -> bool:
    """Return whether arguments are longer than a person can review (``LONGEST_ARGUMENTS``)."""
    return len(json.dumps(arguments)) > LONGEST_ARGUMENTS


def question_text(tool: str, arguments: Mapping[str, Any], *, mark: str = "`") -> str:
    """Return the question as a message in Markdown.

    The arguments are untrusted: they are shown literally, with invisible characters escaped. Long arguments are
    cut off, and the digest distinguishes calls that begin alike. ``mark`` is the character of the code fence.
    """
    if not arguments:
        return f"{_head(tool)}?\n\nAnswer yes or no."
    whole = _json(arguments)
    # Cut before and after: escaping a character takes time, and makes it longer.
    shown = _without_fences(escape_invisible(whole[:_SHOWN]))
    more = len(whole[_SHOWN:]) + len(shown[_SHOWN:])
    if more > 0:
        shown = f"{shown[:_SHOWN]}\n… ({more} more characters)\n{call_digest(tool, arguments)}"
    fence = 3 * mark
    return f"{_head(tool)} with this?\n\n{fence}\n{shown}\n{fence}\n\nAnswer yes or no."


def question_after(reply: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the question after the reply so far, as one message in Markdown.

    The reply is untrusted: a code block that it leaves open would end at the question's fence, and the
    arguments would be rendered as Markdown, which can hide parts of them. So the fence has a mark that begins
    no code block of the reply.
    """
    if "```" not in reply:
        return f"{reply}\n\n{question_text(tool, arguments)}" if reply else question_text(tool, arguments)
    without_tildes = reply.replace("~~~", "\\~~~")
    return f"{without_tildes}\n\n{question_text(tool, arguments, mark='~')}"


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return the arguments as JSON for people: exact, and with invisible characters escaped.

    Each value has its own line, unless there are so many that this would take long. In very long arguments, all
    characters that are not ASCII are escaped, which is fast.
    """
    line = json.dumps(arguments, ensure_ascii=False)
    if len(line) > _READABLE:
        return _without_gaps(json.dumps(arguments))
    is_long = has_more_values(line.encode(errors="replace"), _LINES)
    return escape_unprintable_json(_without_gaps(line) if is_long else _json(arguments))


def _json(arguments: Mapping[str, Any]) -> str:
    return _without_gaps(json.dumps(arguments, ensure_ascii=False, indent=1))


def _without_gaps(text: str) -> str:
    """Return JSON in which the spaces of long runs are escaped."""
    return _GAP.sub(lambda gap: "\\u0020" * len(gap[0]), text)


def _without_fences(text: str) -> str:
    """Return JSON without code fences: every third mark of a run is escaped.

    A longer fence is no solution: if the message is cut, text in a long fence is not shown as code.
    """
    return text.replace("```", "``\\u0060").replace("~~~", "~~\\u007e")


def _head(tool: str) -> str:
    name = escape_invisible(tool[:100]).replace("`", "")[:100]
    return f"May I run `{name}`"


def escape_invisible(text: str) -> str:
    """Return the text with unprintable characters escaped, except line feeds."""
    return escape_unprintable(text, keep="\n")
