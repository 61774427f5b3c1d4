"""Parse the times and the events of platforms: a malformed event must not end the connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import ParamSpec

from torana.connectors.base import IncomingMessage

log = logging.getLogger(__name__)

P = ParamSpec("P")


def parse_alone(
    parse: Callable[P, IncomingMessage | None], *args: P.args, **kwargs: P.kwargs
) -> IncomingMessage | None:
    """Return the message of an event; None if it has none, or if the event is malformed, which is logged.

    Libraries of platforms do not check the types of fields, so a field may have any JSON value.
    """
    try:
        heard = parse(*args, **kwargs)
        if heard is not None:
            _check_types(heard)
    except Exception as error:  # noqa: BLE001 - a malformed event raises errors of many types
        log_ignored_event(type(error).__name__)
        return None
    return heard


def log_ignored_event(reason: str) -> None:
    log.warning("event_ignored", extra={"reason": reason})


def _check_types(heard: IncomingMessage) -> None:
    place, sender = heard.place, heard.sender
    files = heard.attachments
    texts: list[object] = [heard.id, heard.text, sender.id, sender.name, place.chat, place.thread or ""]
    texts += [heard.in_reply_to or "", *place.reply_to.values()]
    texts += [text for file in files for text in (file.name, file.media_type)]
    sizes: list[object] = [file.size or 0 for file in files]
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(size, int) for size in sizes):
        raise TypeError("a field has a value of another type")


def time_of(number: object, *, per_second: int = 1) -> datetime | None:
    """Return the time of a Unix timestamp, in units of 1/``per_second`` s; None if it is not valid."""
    try:
        return datetime.fromtimestamp(float(str(number)) / per_second, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_in_mail(date: str) -> datetime | None:
    """Return the time of a mail's ``Date`` header (RFC 5322, 3.3); None if it is not valid."""
    try:
        time = parsedate_to_datetime(date)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
