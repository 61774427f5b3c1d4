"""The words in which a chat is asked about a call, and what stands before them there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Characters of a call's arguments that are shown in a chat.
_SHOWN = 1_500


def question_text(tool: str, arguments: Mapping[str, Any]) -> str:
    """The question as a message in Markdown.

    The arguments are a model's, and may be what a page or a mail told it: they are shown as they are, without
    anything that could hide or dress them up, and cut where they are long.
    """
    if not arguments:
        return f"{_head(tool)}?\n\nAnswer yes or no."
    written = _visible(json.dumps(arguments, ensure_ascii=False, indent=1))
    more = len(written) - _SHOWN
    shown = f"{written[:_SHOWN]}\n… ({more} more characters)" if more > 0 else written
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", shown))])
    return f"{_head(tool)} with this?\n\n{fence}\n{shown}\n{fence}\n\nAnswer yes or no."


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
    name = _visible(tool).replace("`", "")[:100]
    return f"May I run `{name}`"


def _visible(text: str) -> str:
    """The text with everything written out that is not seen, such as marks that turn it around."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}" for char in text)
