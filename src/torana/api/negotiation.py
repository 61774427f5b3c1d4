"""Content negotiation by the ``Accept`` header (RFC 9110, 12.5.1)."""

from __future__ import annotations

from collections.abc import Mapping

from torana.errors import NotAcceptable

JSON = "application/json"
EVENTS = "text/event-stream"

#: Maximum characters of the header that are read: browsers send some 150.
_LIMIT = 2_000


def wants_events(accept: str) -> bool:
    """Return whether the client accepts server-sent events explicitly and does not prefer JSON.

    An empty ``accept`` means JSON. Raises ``NotAcceptable`` if the client accepts neither.
    """
    ranges = _qualities(accept[:_LIMIT] or "*/*")
    events, plain = _quality(ranges, EVENTS), _quality(ranges, JSON)
    if not events and not plain:
        raise NotAcceptable
    return events > plain or (events == plain and EVENTS in ranges)


def _qualities(accept: str) -> dict[str, float]:
    """Return the media ranges of the header with their quality values."""
    ranges = (part.partition(";") for part in accept.lower().split(","))
    return {name.strip(): _weight(parameters) for name, _, parameters in ranges}


def _weight(parameters: str) -> float:
    """Return the value of ``q``; 1 if it is missing or invalid."""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


def _quality(ranges: Mapping[str, float], media_type: str) -> float:
    """Return the quality value of a media type; the most specific range counts."""
    for name in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        if name in ranges:
            return ranges[name]
    return 0.0
