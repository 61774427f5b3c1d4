"""Limit the values and the lines of a model's events by the time that the providers' SDKs take for them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import cast

from torana.errors import ModelResponseTooLarge
from torana.json_bounds import has_more_values

#: Maximum number of JSON values in an event: reading each takes microseconds.
_EVENT_VALUES = 10_000

#: Maximum weight of an event, the weight per second of the events of all responses of a provider, and the
#: weight that needs no waiting. The SDKs compare a value with each model that may stand in its place; ten units
#: stand for about a millisecond that this may take.
_EVENT_WEIGHT = _WEIGHT_PER_SECOND = 5_000
_BURST_WEIGHT = 1_000
#: The weights of an object and of another item in a list, and the number of objects of an ordinary event.
_OBJECT_WEIGHT, _ITEM_WEIGHT, _FREE_OBJECTS = 6, 1, 16
#: The same weights in the Responses API, whose lists contain many types, and the weight of an object in a list
#: that does not name its type. No object is free.
_TYPED_WEIGHT, _TYPED_ITEM_WEIGHT, _UNTYPED_WEIGHT = 20, 6, 60
#: The weight of any event of the Responses API, whose SDK takes 0.2 ms for an empty one.
LIGHT_WEIGHT = 2
#: The bytes of an event that weigh 1: copying, parsing and storing them takes a tenth of a millisecond.
UNIT_BYTES = 2_048
#: The number of events above ``LONG_BYTES`` that are read at once: each is in memory several times.
LONG_BYTES, _LONG_EVENTS = 65_536, 4
#: The numbers of other items of lists and of fields of objects in an ordinary event. A further field weighs 1.
_FREE_ITEMS, _FREE_FIELDS = 64, 64
#: The events of a response repeat the tools of its request three times, and providers allow 128. These weigh
#: nothing, with eight fields each. Values in the schemas of tools are not compared with models.
_TOOLS, _FREE_TOOLS, _REPEATED, _TOOL_FIELDS = "tools", 128, 3, 8
_SCHEMAS = frozenset({"parameters", "input_schema", "schema"})
#: The end of the path of the Responses API.
MANY_TYPES = "/responses"

#: Maximum number of lines of an event: some SDKs copy the event so far for each line.
EVENT_LINES = 1_000

#: Maximum length of the lines of a stream that are no fields of events. Google's SDK takes them for one JSON
#: document, also over the ends of events.
_OTHER_LENGTH = 65_536
#: The ends of lines of Python's texts, of which its bytes have the first two; SDKs split either.
_LINE_ENDS = (
    b"\n",
    b"\r",
    b"\v",
    b"\f",
    b"\x1c",
    b"\x1d",
    b"\x1e",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xe2\x80\xa9",
)
_STANDARD_LINE_END = re.compile("\r\n|\r|\n")
_FIELDS = ("data: ", "event:", "id:", "retry:", ":")
#: Field that Google's SDK takes for the continuation of such a document, without a space after it.
_UNSPACED = "data:"

TOO_MANY_LINES = (
    "The stream of the model's provider has too many lines, and was refused. Check TORANA_MODEL_BASE_URL."
)
_TOO_MANY_VALUES = (
    "An event of the model's provider has too many JSON values, and was refused. Ask for less at once, or use "
    "another model."
)


class Pace:
    """Limits the heavy events, and the memory of the long ones, of all responses of a provider."""

    def __init__(self) -> None:
        #: Held while a long event is read, until it is passed on. The other streams are not read meanwhile.
        self.long_events = asyncio.Semaphore(_LONG_EVENTS)
        self._due = 0.0

    async def wait(self, weight: int) -> None:
        """Wait until events of this weight may be read."""
        now = time.monotonic()
        self._due = max(self._due, now - _BURST_WEIGHT / _WEIGHT_PER_SECOND) + weight / _WEIGHT_PER_SECOND
        await asyncio.sleep(max(0.0, self._due - now))


class EventWeights:
    """Limits the values and lines of the events of one response.

    With ``many_types`` the objects in lists may be of many types, as in the Responses API.
    """

    def __init__(self, *, many_types: bool) -> None:
        self._many_types = many_types
        self._other = 0
        self._free_tools = _REPEATED * _FREE_TOOLS

    def add(self, event: bytes) -> int:
        """Return the weight of an event. Raises ``ModelResponseTooLarge``."""
        if sum(map(event.count, _LINE_ENDS)) > EVENT_LINES:  # splitting them would take memory
            raise ModelResponseTooLarge(TOO_MANY_LINES)
        text = event.decode(errors="replace")
        lines = text.splitlines()
        fields = _FIELDS if self._other else (*_FIELDS, _UNSPACED)
        self._other += sum(len(line) for line in lines if line and not line.startswith(fields))
        if self._other > _OTHER_LENGTH:
            raise ModelResponseTooLarge(TOO_MANY_LINES)
        weight = self._weigh(_data_of(lines))
        if any(map(event.__contains__, _LINE_ENDS[2:])):
            weight = max(weight, self._weigh(_data_of(_STANDARD_LINE_END.split(text))))
        if weight > _EVENT_WEIGHT:
            raise ModelResponseTooLarge(_TOO_MANY_VALUES)
        return max(weight, LIGHT_WEIGHT) if self._many_types else weight

    def _weigh(self, data: str) -> int:
        """Return the weight of an event's data. Data that is no JSON has none: no SDK compares its values."""
        if "[" not in data and data.count(",") < _FREE_FIELDS:
            return 0
        check_values(data)
        try:
            counts = _count(json.loads(data))
        except (ValueError, RecursionError):
            return 0
        items = max(0, counts["item"] - _FREE_ITEMS)
        fields = max(0, counts["field"] - _FREE_FIELDS)
        free = min(counts["tool"], _FREE_TOOLS, self._free_tools)
        self._free_tools -= free
        objects = counts["typed"] + counts["untyped"] + counts["tool"] - free
        if not self._many_types:
            return _OBJECT_WEIGHT * max(0, objects - _FREE_OBJECTS) + _ITEM_WEIGHT * items + fields
        more = (_UNTYPED_WEIGHT - _TYPED_WEIGHT) * counts["untyped"]
        return _TYPED_WEIGHT * objects + more + _TYPED_ITEM_WEIGHT * items + fields


def _data_of(lines: Sequence[str]) -> str:
    return "\n".join(line[5:] for line in lines if line.startswith("data:"))


def _count(event: object) -> Counter[str]:
    """Return the numbers of tools, typed and untyped objects and other items in lists, and of fields."""
    counts: Counter[str] = Counter()
    open_values = [("", event)]
    while open_values:
        place, value = open_values.pop()
        if isinstance(value, dict):
            named = cast("dict[str, object]", value)
            counts["field"] += len(named) if place != "tool" else max(0, len(named) - _TOOL_FIELDS)
            open_values += [(name, each) for name, each in named.items() if name not in _SCHEMAS]
        elif isinstance(value, list):
            for item in cast("list[object]", value):
                kind = _kind(item, of_tools=place == _TOOLS)
                counts[kind] += 1
                open_values.append((kind, item))
    return counts


def _kind(item: object, *, of_tools: bool) -> str:
    if not isinstance(item, dict):
        return "item"
    if of_tools:
        return "tool"
    return "typed" if isinstance(cast("dict[str, object]", item).get("type"), str) else "untyped"


def check_values(event: str) -> None:
    """Raise ``ModelResponseTooLarge`` if the event has too many JSON values."""
    if len(event) > _EVENT_VALUES and has_more_values(event.encode(errors="replace"), _EVENT_VALUES):
        raise ModelResponseTooLarge(_TOO_MANY_VALUES)
