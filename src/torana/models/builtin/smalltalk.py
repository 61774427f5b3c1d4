"""Recognise greetings, thanks, and questions about the model itself."""

from __future__ import annotations

import re

from torana.models.builtin.languages import FixedReply, languages
from torana.models.builtin.message import BuiltinMessage

#: Maximum characters of small talk.
_LIMIT = 80
_EDGES = re.compile(r"\A[\W_]+|[\W_]+\Z")
_STRAIGHT = str.maketrans("’‘", "''")


def small_talk(message: BuiltinMessage) -> FixedReply | None:
    """Return the reply to a message that is nothing but small talk, with or without a greeting before it."""
    if len(message.text) > _LIMIT:
        return None
    texts = dict.fromkeys((_plain(message.text), _plain(message.phrase)))
    replies = (language.reply(text) for text in texts if text for language in languages().values())
    return next(filter(None, replies), None)


def _plain(text: str) -> str:
    """Return the text without punctuation and emoji around it."""
    return " ".join(_EDGES.sub("", text.translate(_STRAIGHT)).split())
