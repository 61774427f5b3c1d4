"""A session to take away: a JSON object per line, or Markdown to read."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, get_args

from torana.sessions.history import one_line
from torana.sessions.listing import Message, Session

Format = Literal["jsonl", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~])")


def record(message: Message) -> dict[str, Any]:
    """A message as callers get it."""
    return {
        "id": message.id,
        "turnId": message.turn_id,
        "role": message.role,
        "content": message.content,
        "userId": message.user,
        "createdAt": message.at.isoformat(),
    }


def file_name(session: Session, form: Format) -> str:
    """The name of an exported session's file; ids are of letters, digits and underscores."""
    return f"{session.id}.{'md' if form == 'markdown' else form}"


def head(session: Session, form: Format) -> str:
    """What stands before the first message."""
    if form == "jsonl":
        return ""
    title = _plain(session.title or session.channel)
    return f"# {title}\n\nChannel {_plain(session.channel)}, begun {session.created_at:%Y-%m-%d %H:%M} UTC\n"


def told(message: Message, form: Format) -> str:
    """One message: a line of JSON, or a paragraph under its speaker's name."""
    if form == "jsonl":
        return json.dumps(record(message), ensure_ascii=False) + "\n"
    speaker = "Assistant" if message.role == "assistant" else _plain(message.user or "User")
    return f"\n## {speaker}, {message.at:%Y-%m-%d %H:%M} UTC\n\n{_below(message.content)}\n"


def _plain(text: str) -> str:
    """A name or a title on one line, without markup."""
    return _MARKUP.sub(r"\\\1", one_line(text))


def _below(content: str) -> str:
    """What was said, quoted, so that no heading of its own is taken for another speaker's."""
    return "\n".join(f"> {line}".rstrip() for line in content.splitlines())
