"""Malformed variants of an event: each field once missing, and once with each kind of unexpected value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, cast

Path = tuple[str | int, ...]

#: Lists in lists.
_DEEP: list[Any] = reduce(lambda inner, _: [inner], range(500), [])
_EMPTY: dict[str, object] = {}
_VALUES: Sequence[object] = (
    None,
    True,
    -1,
    1.5,
    2**63,
    10**400,
    "",
    "x",
    "x" * 100_000,
    "\ud800",
    "\0\r\n\x1b[2J\u202e",
    list[object](),
    _EMPTY,
    [None],
    [_EMPTY],
    {"": None},
    _DEEP,
)


def malformations(event: Any) -> Iterator[Callable[[Any], Any]]:
    """Yield functions that malform an event of the same form as ``event``, in place, and return it."""
    for path in _paths(event):
        yield partial(_remove, path=path)
        for value in _VALUES:
            yield partial(_replace, path=path, value=value)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    items: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(cast("dict[str, Any]", value).items())
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _remove(event: Any, *, path: Path) -> Any:
    del _at(event, path[:-1])[path[-1]]
    return event


def _replace(event: Any, *, path: Path, value: object) -> Any:
    _at(event, path[:-1])[path[-1]] = value
    return event


def _at(event: Any, path: Path) -> Any:
    for key in path:
        event = event[key]
    return event
