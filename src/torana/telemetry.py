"""Logs: one event name and its fields a line, from our own loggers and from every library's alike.

A module takes its logger by ``get_logger(__name__)`` and logs events with fields, such as
``log.info("turn.completed", ms=12)``; ``bind`` adds fields to all that is logged inside it. One chain of
processors writes every line: times are RFC 3339 in UTC, secrets are masked, long values are cut.
"""

from __future__ import annotations

import logging
import logging.handlers
import re
import sys
from collections.abc import Generator, Iterable, Mapping, Set
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Literal, TextIO, cast

import structlog
from structlog.stdlib import BoundLogger, ExtraAdder, ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

#: Bytes at which the log file is set aside, and how many of those are kept.
FILE_BYTES = 10 * 1024 * 1024
FILES_KEPT = 5

#: Characters of a text, items of a collection and levels of nesting that a line may have.
TEXT_LIMIT = 10_000
ITEM_LIMIT = 100
DEPTH_LIMIT = 6

MASK = "********"

_SECRET_NAME = re.compile(r"(authorization|token|api[-_]?key|password|passwd|secret|cookie)$", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"(?P<kept>\bBearer\s+)[\w.~+/=-]+"  # RFC 6750
    r"|\bsk-[\w-]{16,}"  # the keys of several model providers
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",  # user and password in a URL
    re.IGNORECASE,
)
#: What could steer a terminal or cannot be written as UTF-8; tabs and line ends stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
#: Libraries that tell of each of their requests at INFO.
_TALKATIVE = ("anthropic", "httpcore", "httpx", "openai")
#: By this our handlers are known again when logging is configured once more.
_HANDLER_NAME = "torana"


class _Discreet(logging.Handler):
    """Tells that a line could not be written; logging itself would print the line, unmasked."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        with suppress(OSError, ValueError):
            sys.stderr.write(f"torana: a log line was lost ({type(sys.exception()).__name__})\n")


class _Stream(_Discreet, logging.StreamHandler[TextIO]):
    pass


class _File(_Discreet, logging.handlers.RotatingFileHandler):
    pass


def configure_logging(
    *,
    level: Literal["debug", "info", "warning", "error"],
    format: Literal["auto", "console", "json"],  # noqa: A002
    file: Path | None,
    stream: TextIO,
) -> None:
    """Write the logs of the whole process to ``stream``, and as JSON lines to ``file`` where one is given.

    ``auto`` is readable on a terminal and JSON lines elsewhere; colours appear on a terminal only. Called
    again, it replaces what it set up before. uvicorn's loggers take part, without its access log. Raises
    ``OSError`` where ``file`` cannot be opened.
    """
    terminal = stream.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    handlers: list[logging.Handler] = [_Stream(stream)]
    handlers[0].setFormatter(_formatter(_console(colours=terminal) if readable else _json()))
    if file is not None:
        handlers.append(_rotating(file))
    threshold = logging.getLevelNamesMapping()[level.upper()]
    _install(handlers, threshold)
    _adopt_uvicorn()
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(threshold if level == "debug" else max(threshold, logging.WARNING))


def get_logger(name: str) -> BoundLogger:
    """A logger for events with fields; it may be taken before logging is configured."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=BoundLogger,
    )


@contextmanager
def bind(**fields: object) -> Generator[None]:
    """Add fields such as ``request_id`` to all that this task, and those it starts, log inside the block."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide what stands under a telling name, and credentials inside any text; cut what is too long.

    Control characters, but for tabs and line ends, become escapes.
    """
    return {name: _clean(name, value, depth=0) for name, value in event.items()}


def _clean(name: str, value: object, *, depth: int) -> object:
    if value is None:
        return None
    if _SECRET_NAME.search(name):
        return MASK
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping | list | tuple | Set):
        return _clean_items(name, cast("Iterable[object]", value), depth=depth + 1)
    return _clean_text(repr(value) if isinstance(value, BaseException) else str(value))


def _clean_items(name: str, items: Iterable[object], *, depth: int) -> object:
    if depth > DEPTH_LIMIT:
        return "…"
    if isinstance(items, Mapping):
        pairs = cast("Mapping[object, object]", items).items()
        return {str(key): _clean(str(key), value, depth=depth) for key, value in islice(pairs, ITEM_LIMIT)}
    return [_clean(name, item, depth=depth) for item in islice(items, ITEM_LIMIT)]


def _clean_text(text: str) -> str:
    cut = text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…"
    masked = _SECRET_TEXT.sub(lambda found: f"{found['kept'] or ''}{MASK}", cut)
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], masked)


def _describe(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    record: logging.LogRecord = event["_record"]
    # From the record, so that the terminal and the file tell the same time.
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {
        "timestamp": time.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event.pop("event", ""),
        **event,
    }


def _drop_uvicorn_colours(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event.pop("color_message", None)
    return event


def _formatter(renderer: Processor) -> ProcessorFormatter:
    return ProcessorFormatter(
        foreign_pre_chain=[ExtraAdder(), _drop_uvicorn_colours],
        processors=[
            structlog.contextvars.merge_contextvars,
            _describe,
            # Before masking, because a traceback may quote a secret.
            structlog.processors.format_exc_info,
            ProcessorFormatter.remove_processors_meta,
            mask_secrets,
            renderer,
        ],
    )


def _console(*, colours: bool) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=colours, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )


def _json() -> Processor:
    return structlog.processors.JSONRenderer()


def _rotating(file: Path) -> logging.Handler:
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = _File(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
    handler.setFormatter(_formatter(_json()))
    return handler


def _install(handlers: Iterable[logging.Handler], level: int) -> None:
    root = logging.getLogger()
    for former in [handler for handler in root.handlers if handler.name == _HANDLER_NAME]:
        root.removeHandler(former)
        former.close()
    for handler in handlers:
        handler.name = _HANDLER_NAME
        root.addHandler(handler)
    root.setLevel(level)


def _adopt_uvicorn() -> None:
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = name != "uvicorn.access"
