"""Pages of a list, with cursors."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Generic, Literal, TypeVar, get_args

from pydantic import AwareDatetime, Field, TypeAdapter

from torana.errors import InvalidField

LARGEST_PAGE = 200
#: A page ends with the item whose text brings the page above this number of characters. Without this limit,
#: one user's unread responses could take gigabytes of memory.
PAGE_CHARACTERS = 250_000

#: The first item of a list of messages: the oldest one or the newest one.
Order = Literal["oldest", "newest"]
ORDERS: tuple[Order, ...] = get_args(Order)

T = TypeVar("T")
K = TypeVar("K")

_MIN_TIME, _MAX_TIME = (datetime(year, 1, 1, tzinfo=UTC) for year in (1900, 9000))
#: Times that can be converted to every time zone without overflow.
_Time = Annotated[AwareDatetime, Field(gt=_MIN_TIME, lt=_MAX_TIME)]
#: Numbers that SQLite can store.
_Number = Annotated[int, Field(ge=0, lt=2**63)]

_TIME = TypeAdapter[datetime](_Time)
#: The cursor of a list by time: the time and id of the page's last item.
TIME_KEY = TypeAdapter[tuple[datetime, str]](tuple[_Time, str])
#: The cursor of a list of messages: the sequence number and role of the page's last message.
MESSAGE_KEY = TypeAdapter[tuple[int, str]](tuple[_Number, str])
#: The cursor of a list of messages, the newest first. Its number is negative, so that a list in one order
#: refuses the cursor of the other order.
NEWEST_KEY = TypeAdapter[tuple[int, str]](tuple[Annotated[int, Field(gt=-(2**63), lt=0)], str])
#: The cursor of a list by number: the number of the page's last item.
NUMBER_KEY = TypeAdapter[int](_Number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page of items. ``next`` is the cursor of the next page, or None on the last page."""

    items: Sequence[T]
    next: str | None


def cut(
    items: Sequence[T],
    limit: int,
    key: Callable[[T], K],
    kind: TypeAdapter[K],
    *,
    size: Callable[[T], int] | None = None,
) -> Page[T]:
    """Return the page of the first ``limit`` items. More items than that mean that there is a next page.

    With ``size``, the number of characters of an item, the page may have fewer items.
    """
    shown = items[:limit]
    if size is not None:
        shown = list(_fitting(shown, size))
    return Page(items=shown, next=encode_cursor(key(shown[-1]), kind) if len(items) > len(shown) else None)


def read_until_full(items: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    """Yield the items of a page, and one more if there is one."""
    room = PAGE_CHARACTERS
    for item in items:
        yield item
        if room < 0:
            return
        room -= size(item)


def _fitting(items: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    room = PAGE_CHARACTERS
    for item in items:
        if room < 0:
            return
        yield item
        room -= size(item)


def read_cursor(cursor: str | None, kind: TypeAdapter[K]) -> K | None:
    """Decode a cursor. Raises ``InvalidField`` for a text that is not a cursor of this kind."""
    if cursor is None:
        return None
    try:
        return kind.validate_json(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), strict=True)
    except ValueError:
        raise InvalidField("`after` must be the `next` of an earlier page, as it was sent.") from None


def encode_cursor(key: K, kind: TypeAdapter[K]) -> str:
    """Return the cursor of a key."""
    return base64.urlsafe_b64encode(kind.dump_json(key)).decode().rstrip("=")


def read_time(text: str) -> datetime | None:
    """Return the time of a text as in RFC 3339; None without a time zone, or for another text."""
    try:
        return _TIME.validate_json(f'"{text}"')
    except ValueError:
        return None
