"""Lists in pages: so many items, and where the next page begins."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AwareDatetime, Field, TypeAdapter

from torana.errors import InvalidField

LARGEST_PAGE = 200

T = TypeVar("T")
K = TypeVar("K")

_DAWN, _DUSK = (datetime(year, 1, 1, tzinfo=UTC) for year in (1900, 9000))
#: Between bounds that every time zone can be reckoned in.
_Time = Annotated[AwareDatetime, Field(gt=_DAWN, lt=_DUSK)]
#: One that SQLite can hold.
_Number = Annotated[int, Field(ge=0, lt=2**63)]

#: Where a page ends that goes by time: the time of its last item, and its id.
TIME_KEY = TypeAdapter[tuple[datetime, str]](tuple[_Time, str])
#: Where a page of messages ends: the last one's turn, and its side of it.
MESSAGE_KEY = TypeAdapter[tuple[int, str]](tuple[_Number, str])
#: Where a page ends that goes by number: that of its last item.
NUMBER_KEY = TypeAdapter[int](_Number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some items, and where the next page begins; None behind the last."""

    items: Sequence[T]
    next: str | None


def cut(items: Sequence[T], limit: int, key: Callable[[T], K], kind: TypeAdapter[K]) -> Page[T]:
    """A page of the first ``limit`` items; more than these stand for a next page, behind the last one's key."""
    shown = items[:limit]
    return Page(items=shown, next=_written(key(shown[-1]), kind) if len(items) > limit else None)


def read_cursor(cursor: str | None, kind: TypeAdapter[K]) -> K | None:
    """The key behind which a page begins. Raises ``InvalidField`` for what no page gave."""
    if cursor is None:
        return None
    try:
        return kind.validate_json(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), strict=True)
    except ValueError:
        raise InvalidField("`after` must be the `next` of an earlier page, as it was sent.") from None


def _written(key: K, kind: TypeAdapter[K]) -> str:
    return base64.urlsafe_b64encode(kind.dump_json(key)).decode().rstrip("=")
