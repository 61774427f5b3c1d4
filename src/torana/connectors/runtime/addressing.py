"""Convert places to stored text and to channel names."""

from __future__ import annotations

import hashlib
import json

from torana.connectors.base import Place
from torana.messages import ID_LIMIT


def channel_of(account: str, place: Place) -> str:
    """Return the session's channel: the account, the chat and its thread, or a digest if that is too long."""
    parts = [account, place.chat] if place.thread is None else [account, place.chat, place.thread]
    channel = "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)
    if len(channel) <= ID_LIMIT and channel.isprintable():
        return channel
    return f"{account}/{hashlib.sha256(channel.encode('utf-8', 'replace')).hexdigest()}"


def dump_place(place: Place) -> str:
    return json.dumps({"chat": place.chat, "thread": place.thread, "reply_to": dict(place.reply_to)})


def read_place(text: str) -> Place:
    return Place(**json.loads(text))
