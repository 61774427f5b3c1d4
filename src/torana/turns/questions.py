"""What people are asked, and the words by which they answer."""

from __future__ import annotations

import json
import re
from typing import Any

from torana.store.approvals import Approval

#: Characters of a call's arguments that are shown in a chat.
_SHOWN = 1_500

#: What counts as a yes or a no, whole and alone; in small letters, without a full stop.
_YES = frozenset(
    {"yes", "y", "ok", "okay", "ja", "j", "oui", "si", "sì", "sí", "sim", "да", "はい", "是", "好"}
)
_NO = frozenset({"no", "n", "nein", "non", "nao", "não", "нет", "いいえ", "否", "不"})


def is_answer(content: str) -> bool:
    """Whether a message would be an answer, if something were asked."""
    return read_answer(content) is not None


def read_answer(content: str) -> bool | None:
    """Whether a message is a yes or a no to a question; None for any other message."""
    word = content.strip().rstrip(".!").casefold()
    return True if word in _YES else False if word in _NO else None


def asked_of(approval: Approval) -> dict[str, Any]:
    """What programs are told of a question."""
    return {
        "callId": approval.call_id,
        "tool": approval.tool,
        "arguments": approval.arguments,
        "expiresAt": approval.expires_at.isoformat(),
    }


def question_text(approval: Approval) -> str:
    """The question as a message in Markdown.

    The arguments are a model's, and may be what a page or a mail told it: they are shown as they are, without
    anything that could hide or dress them up, and cut where they are long.
    """
    arguments = _visible(json.dumps(approval.arguments, ensure_ascii=False, indent=1))
    more = len(arguments) - _SHOWN
    shown = f"{arguments[:_SHOWN]}\n… ({more} more characters)" if more > 0 else arguments
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", shown))])
    name = _visible(approval.tool).replace("`", "")[:100]
    head = f"May I run `{name}`"
    if not approval.arguments:
        return f"{head}?\n\nAnswer yes or no."
    return f"{head} with this?\n\n{fence}\n{shown}\n{fence}\n\nAnswer yes or no."


def _visible(text: str) -> str:
    """The text with everything written out that is not seen, such as marks that turn it around."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}" for char in text)
