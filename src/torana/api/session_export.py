"""Write sessions as JSON lines or Markdown."""

from __future__ import annotations

import json
import re

from torana.api.schemas.turns import MessageItem
from torana.messages import ExportFormat
from torana.sessions.history import one_line
from torana.sessions.listing import Session, SessionMessage

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~])")


def file_name(session: Session, form: ExportFormat) -> str:
    """Return the file name of an exported session. Its id consists of letters, digits and underscores."""
    return f"{session.id}.{'md' if form == 'markdown' else form}"


def head(session: Session, form: ExportFormat) -> str:
    """Return the text before the first message."""
    if form == "jsonl":
        return ""
    title = _plain(session.title or session.channel)
    return f"# {title}\n\nChannel {_plain(session.channel)}, begun {session.created_at:%Y-%m-%d %H:%M} UTC\n"


def format_message(message: SessionMessage, form: ExportFormat) -> str:
    """Return a message as a line of JSON, or as a section under its speaker's name."""
    if form == "jsonl":
        return (
            json.dumps(MessageItem.model_validate(message).model_dump(mode="json"), ensure_ascii=False) + "\n"
        )
    speaker = "Assistant" if message.role == "assistant" else _plain(message.user or "User")
    return f"\n## {speaker}, {message.at:%Y-%m-%d %H:%M} UTC\n\n{_below(message.content)}\n"


def _plain(text: str) -> str:
    """Return a name or a title on one line, with its markup escaped."""
    return _MARKUP.sub(r"\\\1", one_line(text))


def _below(content: str) -> str:
    """Return a message as a quotation, so that its headings do not look like those of the file."""
    return "\n".join(f"> {line}".rstrip() for line in content.splitlines())
