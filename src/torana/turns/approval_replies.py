"""The visible parts of an approval, the data of its event, and the words that answer its question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torana.sessions.history import hides
from torana.store.rows.approvals import Approval

#: Whole messages that mean yes or no; lower case, without a full stop.
_YES = frozenset(
    {"yes", "y", "ok", "okay", "ja", "j", "oui", "si", "sì", "sí", "sim", "да", "はい", "是", "好"}
)
_NO = frozenset({"no", "n", "nein", "non", "nao", "não", "нет", "いいえ", "否", "不"})


def read_answer(content: str) -> bool | None:
    """Return True for a yes, False for a no, and None for any other message."""
    word = content.strip().rstrip(".!").casefold()
    return True if word in _YES else False if word in _NO else None


def with_visible_arguments(approval: Approval, *, shared: bool) -> Approval:
    """Return an approval whose private arguments are hidden from its readers.

    ``shared`` is true in a session of several users. Private arguments of an open approval are not hidden,
    because a person decides by them.
    """
    hidden = approval.state != "open" and hides(approval.tool, shared=shared)
    return replace(approval, hidden=hidden)


def approval_event_data(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "digest": approval.digest,
        "callId": approval.call_id,
        "tool": approval.tool,
        "arguments": approval.arguments,
        "expiresAt": approval.expires_at.isoformat(),
    }
