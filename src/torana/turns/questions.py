"""What programs are told of a question, and the words by which people answer."""

from __future__ import annotations

from typing import Any

from torana.store.approvals import Approval

#: What counts as a yes or a no, whole and alone; in small letters, without a full stop.
_YES = frozenset(
    {"yes", "y", "ok", "okay", "ja", "j", "oui", "si", "sì", "sí", "sim", "да", "はい", "是", "好"}
)
_NO = frozenset({"no", "n", "nein", "non", "nao", "não", "нет", "いいえ", "否", "不"})


def read_answer(content: str) -> bool | None:
    """Whether a message is a yes or a no to a question; None for any other message."""
    word = content.strip().rstrip(".!").casefold()
    return True if word in _YES else False if word in _NO else None


def asked_of(approval: Approval) -> dict[str, Any]:
    """What programs are told of a question."""
    return {
        "id": approval.id,
        "digest": approval.digest,
        "callId": approval.call_id,
        "tool": approval.tool,
        "arguments": approval.arguments,
        "expiresAt": approval.expires_at.isoformat(),
    }
