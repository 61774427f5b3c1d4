"""Places as they are kept, and the channels that they are for the gateway."""

from __future__ import annotations

import hashlib
import json

from torana.connectors.base import Place
from torana.messages import ID_LIMIT


def channel_of(account: str, place: Place) -> str:
    """The session's channel: the account, the chat and its thread; a very long one by its digest."""
    steps = [account, place.chat] if place.thread is None else [account, place.chat, place.thread]
    channel = "/".join(step.replace("%", "%25").replace("/", "%2F") for step in steps)
    if len(channel) <= ID_LIMIT and channel.isprintable():
        return channel
    return f"{account}/{hashlib.sha256(channel.encode('utf-8', 'replace')).hexdigest()}"


def dump_place(place: Place) -> str:
    """The place as it is kept with what is answered there."""
    return json.dumps({"chat": place.chat, "thread": place.thread, "reply_to": dict(place.reply_to)})


def read_place(text: str) -> Place:
    """What ``dump_place`` wrote."""
    return Place(**json.loads(text))
