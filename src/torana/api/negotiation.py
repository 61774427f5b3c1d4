"""What a caller wants to be sent: the ``Accept`` header (RFC 9110, 12.5.1)."""

from __future__ import annotations

from collections.abc import Mapping

from torana.errors import NotAcceptable

JSON = "application/json"
EVENTS = "text/event-stream"


def wants_events(accept: str) -> bool:
    """Whether server-sent events are asked for: named there, and liked no less than JSON.

    Nothing in ``accept`` means JSON. Raises ``NotAcceptable`` for neither.
    """
    liked = _qualities(accept or "*/*")
    events, plain = _quality(liked, EVENTS), _quality(liked, JSON)
    if not events and not plain:
        raise NotAcceptable
    return events > plain or (events == plain and EVENTS in liked)


def _qualities(accept: str) -> dict[str, float]:
    """The media ranges of the header, with how much each is liked."""
    ranges = (part.partition(";") for part in accept.lower().split(","))
    return {name.strip(): _weight(parameters) for name, _, parameters in ranges}


def _weight(parameters: str) -> float:
    """The value of ``q`` among the parameters; 1 where there is none that can be read."""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


def _quality(liked: Mapping[str, float], media_type: str) -> float:
    """How much one type is liked: the most exact range counts."""
    for name in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        if name in liked:
            return liked[name]
    return 0.0
