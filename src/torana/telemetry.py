"""Logs: each line has one event name and fields, from this package's loggers and from libraries.

A module takes its logger by ``logging.getLogger(__name__)`` and logs events with fields, such as
``log.info("turn_completed", extra={"ms": 12})``. ``bind`` adds fields to all events inside its block. Times are
RFC 3339 in UTC, secrets are masked, and long values are cut.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Literal, TextIO, cast

from torana.characters import HIDDEN, char_class, escape

#: The size in bytes at which the log file is rotated, and the number of rotated files.
FILE_BYTES = 10 * 1024 * 1024
FILES_KEPT = 5

#: The maximum length of a text, number of items in a collection, and depth of nesting in a line.
TEXT_LIMIT = 10_000
ITEM_LIMIT = 100
DEPTH_LIMIT = 6

MASK = "********"

_SECRET_NAME = re.compile(r"(authorization|token|api[-_]?key|password|passwd|secret|cookie)$", re.IGNORECASE)
#: Prefixes of model providers' keys. ``sk`` is used by OpenAI, Anthropic, OpenRouter and others.
_KEY_PREFIX = "sk|pk|rk|gsk|xai|csk|fw|hf|pplx|nvapi|r8|tgp|vck|ghp|gho|ghu|github_pat"
#: Patterns of credentials in texts. Each match contains one of the pattern's texts in lower case; searching for
#: them first takes a fifth of the time. The group ``kept`` is not masked.
_SECRET_TEXTS = tuple(
    (signs, re.compile(pattern))
    for signs, pattern in (
        (("bearer",), r"(?i:(?P<kept>\bBearer\s+)[\w.~+/=-]+)"),  # RFC 6750
        # Requires a digit, or the asterisks of a provider that masks keys: hyphenated words seldom have either.
        (("-", "_"), rf"\b(?:{_KEY_PREFIX})[-_](?=[\w.-]{{0,200}}?[\d*])[\w*.-]{{8,}}"),
        # Google, AWS
        (("aiza", "aq.", "absk", "akia", "ya29."), r"\b(?:AIza|AQ\.|ABSK|AKIA|ya29\.)[\w*.-]{8,}"),
        (("torana_",), r"\btorana_[\w-]{32,}"),  # Torana's tokens, also truncated ones
        # Telegram bot tokens, which are in the path of each request
        ((":",), r"(?<!\d)\d{6,20}:[\w-]{30,}"),
        # A JSON Web Token (RFC 7519). The lookbehind ensures that each run of characters is scanned once.
        (("eyj",), r"(?<![\w-])eyJ[\w-]{8,2000}\.[\w-]+\.[\w-]+"),
        (("://",), r"(?<=://)[^/\s@]+(?=@)"),  # user and password in a URL
        # Credentials in a query
        (("=",), r"(?i:(?<=key=)|(?<=token=)|(?<=secret=)|(?<=signature=))[^&\s\"']+"),
    )
)
#: Control and invisible characters, except tabs and line feeds.
_CONTROL = char_class("\r", HIDDEN)
#: Libraries that log each of their steps at INFO.
_VERBOSE_LIBRARIES = ("alembic", "anthropic", "httpcore", "httpcore2", "httpx", "httpx2", "openai")
#: Libraries of chat platforms log messages and credentials below WARNING, so these levels are disabled.
_CHAT_LIBRARIES = (
    "aiosmtplib",
    "discord",
    "markdown_it",
    "nio",
    "slack_sdk",
    "slixmpp",
    "telegram",
    "websockets",
)
#: Libraries that log a line for each message from outside. The gateway logs the relevant ones itself.
_ECHOING = ("client", "mcp")
#: The turn of a line in the log file. The quotation marks of the same text inside a value are escaped.
_TURN = re.compile(rb'"turn_id": "(\w+)"')
#: The attributes of every record; all others are fields. uvicorn adds its message in colours.
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_TRACEBACK = "exception"
#: Fields that a readable line shows first, without their names.
_HEAD = frozenset({"timestamp", "level", "logger", "event"})
#: Fields that readable lines of INFO leave to the log file.
_FOR_FILE = frozenset({"logger", "request_id", "session_id", "turn_id"})
_UNQUOTED = re.compile(r"[^\s=\"'\\]+")
#: Codes of the terminal (ECMA-48, SGR).
_BOLD, _DIM = 1, 2
_COLOURS = {"debug": 32, "info": 32, "warning": 33, "error": 31, "critical": 31}

_bound: ContextVar[Mapping[str, object]] = ContextVar("torana_bound", default=MappingProxyType({}))

#: Identifies this module's handlers when logging is configured again.
_HANDLER_NAME = "torana"


class _Discreet(logging.Handler):
    """Reports a line that could not be written. The base class would print the line with its secrets."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        with suppress(OSError, ValueError):
            sys.stderr.write(f"torana: a log line was lost ({type(sys.exception()).__name__})\n")


class _Stream(_Discreet, logging.StreamHandler[TextIO]):
    pass


class _File(_Discreet, logging.handlers.RotatingFileHandler):
    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
        self._dropping = threading.Lock()

    def files(self) -> list[Path]:
        """Return the log file and the rotated files that exist."""
        return [file for file in self._names() if file.exists()]

    def drop(self, turn_ids: Set[str]) -> None:
        """Rewrite the files without the lines of these turns.

        Events that are logged meanwhile wait only while a rewritten file replaces the former one.
        """
        base = Path(self.baseFilename)
        with self._dropping:
            for left in base.parent.glob(f"{base.name}*.part"):  # left by an interrupted call
                left.unlink()
            # A rotation gives a file the next name, so none is missed.
            for name in self._names():
                self._drop_from(name, base.with_name(f"{base.name}.part"), turn_ids)

    def _drop_from(self, name: Path, partial: Path, turn_ids: Set[str]) -> None:
        try:
            lines = name.open("rb")
        except FileNotFoundError:
            return
        with lines:
            if not any(_is_of(line, turn_ids) for line in lines):
                return
            lines.seek(0)
            with partial.open("wb") as kept:
                _copy_lines(lines, kept, turn_ids, growing=True)
                with self._waiting_events():
                    _copy_lines(lines, kept, turn_ids, growing=False)
                    kept.close()
                    self._replace(os.fstat(lines.fileno()), partial)

    def _replace(self, former: os.stat_result, partial: Path) -> None:
        """Replace a file, whatever its name is by now."""
        for file in self.files():
            if os.path.samestat(former, file.stat()):
                partial.replace(file)
                return
        partial.unlink()  # a rotation has deleted the file

    @contextmanager
    def _waiting_events(self) -> Generator[None]:
        """Let events wait, and open the log file again for the next one."""
        self.acquire()
        try:
            yield
        finally:
            if self.stream is not None:
                self.stream.close()
                self.stream = None
            self.release()

    def _names(self) -> list[Path]:
        """Return the names of the log file and of the rotated files, the newest first."""
        return [Path(self.baseFilename + suffix) for suffix in ("", *(f".{n + 1}" for n in range(FILES_KEPT)))]


def configure_logging(
    *,
    level: Literal["debug", "info", "warning", "error"],
    format: Literal["auto", "console", "json"],  # noqa: A002
    file: Path | None,
    stream: TextIO,
) -> None:
    """Write the logs of the whole process to ``stream``, and as JSON lines to ``file`` if there is one.

    ``auto`` is readable on a terminal and JSON lines elsewhere; only a terminal gets colours. Readable lines
    leave out ids and routine events, so that a message has one line. A second call replaces the handlers of the
    first. uvicorn's loggers are included, except its access log. Raises
    ``OSError`` if ``file`` cannot be opened.
    """
    terminal = stream.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    as_json = _Formatter(json.dumps)
    handlers: list[logging.Handler] = [_Stream(stream)]
    handlers[0].setFormatter(_Formatter(partial(_readable, colours=terminal)) if readable else as_json)
    if readable and level != "debug":
        handlers[0].addFilter(_is_for_reader)
    if file is not None:
        handlers.append(_rotating(file, as_json))
    threshold = logging.getLevelNamesMapping()[level.upper()]
    _install(handlers, threshold)
    _adopt_uvicorn()
    for name in _CHAT_LIBRARIES:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _ECHOING:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    for name in _VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(threshold if level == "debug" else max(threshold, logging.WARNING))


@contextmanager
def bind(**fields: object) -> Generator[None]:
    """Add fields such as ``request_id`` to all events of this task and its subtasks inside the block."""
    before = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(before)


def bound_fields() -> Mapping[str, object]:
    """Return the fields that ``bind`` adds to an event at this point."""
    return _bound.get()


def log_files() -> list[Path]:
    """Return the log file and its rotated files, the newest first; none without a log file."""
    return [file for handler in _files() for file in handler.files()]


def logged_turns() -> set[str]:
    """Return the ids of all turns with lines in the log files."""
    return {turn_id for file in log_files() for turn_id in _turns_in(file)}


def drop_turns(turn_ids: Set[str]) -> None:
    """Remove all lines of these turns from the log files. Raises ``OSError``."""
    for handler in _files():
        handler.drop(turn_ids)


def mask_secrets(event: Mapping[str, object]) -> dict[str, object]:
    """Mask credentials in names and texts, and cut long values.

    Control characters, except tabs and line ends, are escaped.
    """
    return {name: _clean(name, value, depth=0) for name, value in event.items()}


def mask_text(text: str) -> str:
    """Mask texts that look like credentials: bearer tokens, keys with known prefixes, credentials in URLs."""
    lowered = text.lower()
    for signs, pattern in _SECRET_TEXTS:
        for sign in signs:
            if sign in lowered:
                text = pattern.sub(_mask, text)
                break
    return text


def _mask(found: re.Match[str]) -> str:
    return f"{found.groupdict().get('kept', '')}{MASK}"


@lru_cache(maxsize=512)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _clean(name: str, value: object, *, depth: int) -> object:
    if value is None:
        return None
    if _is_secret(name):
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
    return _CONTROL.sub(lambda found: escape(found[0]), mask_text(cut))


class _Formatter(logging.Formatter):
    """Formats each record once, although the handlers ask for the same line several times."""

    def __init__(self, render: Callable[[dict[str, object]], str]) -> None:
        super().__init__()
        self._render = render
        #: The last line and a weak reference to its record, which may hold large objects of a traceback.
        self._last: tuple[Callable[[], logging.LogRecord | None], str] = (lambda: None, "")

    def format(self, record: logging.LogRecord) -> str:
        last, line = self._last
        if record is not last():
            line = self._render(mask_secrets(self._event(record)))
            self._last = weakref.ref(record), line
        return line

    def _event(self, record: logging.LogRecord) -> dict[str, object]:
        # The record's time, so that the terminal and the file show the same time.
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event: dict[str, object] = {
            "timestamp": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        own = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        # Before masking: a traceback may contain a secret.
        if record.exc_info and record.exc_info[0] is not None:
            own[_TRACEBACK] = self.formatException(record.exc_info)
        return event | {name: value for name, value in {**bound_fields(), **own}.items() if name not in event}


def _readable(event: dict[str, object], *, colours: bool) -> str:
    def colour_text(text: str, colour: int) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colours else text

    level, traceback = str(event["level"]), event.pop(_TRACEBACK, None)
    hidden = _FOR_FILE if level == "info" else frozenset[str]()
    head = [
        colour_text(str(event["timestamp"]), _DIM),
        f"[{colour_text(f'{level:<8}', _COLOURS.get(level, _BOLD))}]",
        colour_text(_on_one_line(str(event["event"])), _BOLD),
    ]
    if "logger" not in hidden:
        head.append(f"[{event['logger']}]")
    fields = (f"{name}={_plain(value)}" for name, value in sorted(event.items()) if name not in _HEAD | hidden)
    line = " ".join([*head, *fields])
    return line if traceback is None else f"{line}\n{traceback}"


def _is_for_reader(record: logging.LogRecord) -> bool:
    """Return whether a record is more than a step of a message that ``turn_ended`` reports."""
    return record.msg != "turn_accepted" and (record.msg != "request" or getattr(record, "status", 0) >= 400)


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _plain(value: object) -> str:
    """Return a text unquoted if it cannot be misread, any other value as its ``repr``."""
    value = value.value if isinstance(value, Enum) else value
    return value if isinstance(value, str) and _UNQUOTED.fullmatch(value) else repr(value)


def _rotating(file: Path, formatter: logging.Formatter) -> logging.Handler:
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = _File(file)
    handler.setFormatter(formatter)
    return handler


def _files() -> list[_File]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _File)]


def _turns_in(file: Path) -> set[str]:
    try:
        with file.open("rb") as lines:
            return {found[1].decode() for line in lines if (found := _TURN.search(line))}
    except FileNotFoundError:  # rotated meanwhile: it has the name of the next file
        return set()


def _is_of(line: bytes, turn_ids: Set[str]) -> bool:
    found = _TURN.search(line)
    return found is not None and found[1].decode() in turn_ids


def _copy_lines(lines: BinaryIO, kept: BinaryIO, turn_ids: Set[str], *, growing: bool) -> None:
    """Copy the lines of other turns. Stop before a line that is being written if the file is ``growing``."""
    for line in lines:
        if growing and not line.endswith(b"\n"):
            lines.seek(-len(line), os.SEEK_CUR)
            return
        if not _is_of(line, turn_ids):
            kept.write(line)


def _install(handlers: Iterable[logging.Handler], level: int) -> None:
    root = logging.getLogger()
    for former in [handler for handler in root.handlers if handler.name == _HANDLER_NAME]:
        root.removeHandler(former)
        former.close()
    for handler in handlers:
        handler.name = _HANDLER_NAME
        root.addHandler(handler)
    root.setLevel(level)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a record is not uvicorn's report of an aborted response, which is logged elsewhere."""
    return record.msg != "ASGI callable returned without completing response."


def _adopt_uvicorn() -> None:
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = name != "uvicorn.access"
