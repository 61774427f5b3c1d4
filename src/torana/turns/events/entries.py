"""The entries of shared events: one Redis stream for each running turn, named as its channel of messages.

The id of an entry is ``<attempt>-<number>`` with numbers from 1 without gaps in each attempt. Redis refuses an
id that is not above the last one, so a replica cannot add entries after another replica has continued the turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast, get_args

from torana.json_bounds import has_more_values
from torana.messages import TERMINAL_EVENTS, EventType

Event: TypeAlias = tuple[EventType, Mapping[str, Any]]
EntryId: TypeAlias = tuple[int, int]

_PREFIX = "torana:turn:"

#: The end of a turn comes from the database.
_TYPES = frozenset(get_args(EventType)) - TERMINAL_EVENTS

#: The fields of events that readers rely on; all are texts.
_FIELDS: Mapping[str, str] = {
    "message.delta": "text",
    "message.snapshot": "text",
    "turn.resumed": "text",
    "approval.required": "id",
}

#: The maximum number of JSON values in an entry. The pending events of a turn have fewer.
_VALUES = 50_000

#: The maximum of both numbers of an id. Those of Redis have 64 bits.
_HIGHEST = 2**63

#: Adds the entry ``ARGV[1]`` with the events ``ARGV[2]``, deletes all earlier ones if ``ARGV[3]`` is 1, and
#: returns the number of entries. About ``ARGV[4]`` entries remain, for ``ARGV[5]`` seconds.
ADD = """
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], ARGV[1], 'events', ARGV[2])
if ARGV[3] == '1' then redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1]) end
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('PUBLISH', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
return redis.call('XLEN', KEYS[1])
"""

#: A part of the error of Redis for an id that is not above the last one.
NOT_ABOVE = "equal or smaller"

#: A part of the error of Redis for a key that another program has written, and that is no stream.
NO_STREAM = "WRONGTYPE"


def key_of(turn_id: str) -> str:
    """Return the key of a turn's stream, and the name of its channel."""
    return _PREFIX + turn_id


def turn_of(key: bytes) -> str:
    return key.decode().removeprefix(_PREFIX)


def write_id(attempt: int, number: int) -> str:
    return f"{attempt}-{number}"


def read_id(text: bytes) -> EntryId:
    """Return the attempt and the number of an id. Raises ``ValueError``."""
    attempt, _, number = text.partition(b"-")
    entry = int(attempt), int(number)
    if not 0 < min(entry) <= max(entry) <= _HIGHEST:
        raise ValueError(text)
    return entry


def write_events(events: Sequence[Event]) -> str:
    """Return events as JSON in ASCII, so that half a surrogate pair at the end of a delta remains."""
    return json.dumps(events, separators=(",", ":"))


def read_events(document: bytes) -> list[Event]:
    """Return the events of an entry without those of unknown types. Raises ``ValueError`` if it has none."""
    if has_more_values(document, _VALUES):
        raise ValueError(document)
    try:
        found: object = json.loads(document)
    except RecursionError as error:
        raise ValueError(document) from error
    if not isinstance(found, list):
        raise ValueError(document)  # noqa: TRY004 - as for invalid JSON
    events = [_read_event(one) for one in cast("list[Any]", found)]
    return [event for event in events if event[0] in _TYPES]


def merge_deltas(events: Iterable[Event]) -> list[Event]:
    """Return the events with each series of deltas as one."""
    merged: list[Event] = []
    texts: list[str] = []

    def close_series() -> None:
        if texts:
            merged.append(("message.delta", {"text": "".join(texts)}))
            texts.clear()

    for type_, data in events:
        if type_ == "message.delta":
            texts.append(data["text"])
        else:
            close_series()
            merged.append((type_, data))
    close_series()
    return merged


def _read_event(value: Any) -> Event:
    try:
        type_, data = value
        if type_ in _FIELDS and not isinstance(data[_FIELDS[type_]], str):
            raise ValueError(value)
        return type_, dict(data)
    except (TypeError, KeyError) as error:
        raise ValueError(value) from error
