"""The words in which a chat is asked about a call, what stands before them there, and the call's digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Characters of a call's arguments that are shown in a chat.
_SHOWN = 1_500


def call_digest(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return what stands for exactly this call: ``sha256:`` and 64 hexadecimal digits.

    They are the SHA-256 of the JSON object of ``arguments`` and ``tool`` with sorted names, without spaces and
    with everything that is not ASCII escaped.
    """
    call = {"arguments": dict(arguments), "tool": tool}
    canonical = json.dumps(call, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def question_text(tool: str, arguments: Mapping[str, Any]) -> str:
    """The question as a message in Markdown.

    The arguments are a model's, and may be what a page or a mail told it: they are shown as they are, without
    anything that could hide or dress them up, and cut where they are long; then the call's digest tells it
    from others that begin alike.
    """
    if not arguments:
        return f"{_head(tool)}?\n\nAnswer yes or no."
    shown = arguments_text(arguments)
    more = len(shown) - _SHOWN
    if more > 0:
        shown = f"{shown[:_SHOWN]}\n… ({more} more characters)\n{call_digest(tool, arguments)}"
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", shown))])
    return f"{_head(tool)} with this?\n\n{fence}\n{shown}\n{fence}\n\nAnswer yes or no."


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return all arguments as JSON, a line for each, with everything written out that is not seen."""
    return visible(json.dumps(arguments, ensure_ascii=False, indent=1))


def before_question(tool: str, parts: Sequence[str]) -> list[str]:
    """What stands before the question in a message, of whose parts one may be cut short and the last left out.

    All of it where no part holds the question's first words: they may have been cut in two.
    """
    for place, part in reversed(list(enumerate(parts))):
        # No line of the arguments begins with these words: JSON writes the ends of lines out.
        before, found, _ = f"\n{part}".rpartition(f"\n{_head(tool)}")
        if found:
            return [*parts[:place], *filter(None, [before.strip()])]
    return list(parts)


def _head(tool: str) -> str:
    name = visible(tool).replace("`", "")[:100]
    return f"May I run `{name}`"


def visible(text: str) -> str:
    """Return the text with everything written out that is not seen, such as marks that turn it around."""
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
