"""Read the newest lines of the log files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from torana.telemetry import log_files

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)

#: Maximum bytes that are read for a request, and at a time.
_MOST, _BLOCK = 8_000_000, 64 * 1024

_HEAD = frozenset({"timestamp", "level", "logger", "event"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of the log."""

    at: str
    level: str
    logger: str
    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The newest matching lines, the newest first. ``complete`` is false if older lines were not read."""

    lines: list[LogLine]
    complete: bool


def read_tail(*, level: LogLevel, event: str | None, limit: int) -> LogTail:
    """Return at most ``limit`` of the newest lines of at least this level, and with this event if there is one.

    Reads at most 8 MB from the end of the log files. Call it in a thread.
    """
    least = _number(level)
    found: list[LogLine] = []
    left = _MOST
    for file in log_files():
        for raw in _lines_backwards(file, most=left):
            left -= len(raw) + 1
            line = _parse(raw)
            if line is None or _number(line.level) < least or event not in (None, line.event):
                continue
            if len(found) == limit:
                return LogTail(lines=found, complete=False)
            found.append(line)
        if left <= 0:
            return LogTail(lines=found, complete=False)
    return LogTail(lines=found, complete=True)


def _lines_backwards(file: Path, *, most: int) -> Iterator[bytes]:
    """Yield the lines of a file from the last one, until ``most`` bytes are read."""
    try:
        opened = file.open("rb")
    except FileNotFoundError:  # rotated meanwhile
        return
    with opened:
        end = opened.seek(0, 2)
        stop = max(0, end - most)
        rest = b""
        while end > stop:
            start = max(stop, end - _BLOCK)
            opened.seek(start)
            rest, *lines = (opened.read(end - start) + rest).split(b"\n")
            yield from reversed(lines)
            end = start
        if stop == 0:
            yield rest


def _parse(raw: bytes) -> LogLine | None:
    try:
        read: object = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(read, dict) or not read.keys() >= _HEAD:
        return None
    line = cast("dict[str, Any]", read)
    fields = {name: value for name, value in line.items() if name not in _HEAD}
    head = {name: str(line[name]) for name in ("level", "logger", "event")}
    return LogLine(at=str(line["timestamp"]), **head, fields=fields)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
