"""Logs: one event name and its fields a line, from our own loggers and from every library's alike.

A module takes its logger by ``logging.getLogger(__name__)`` and logs events with fields, such as
``log.info("turn_completed", extra={"ms": 12})``; ``bind`` adds fields to all that is logged inside it. Every
line is written in the same way: times are RFC 3339 in UTC, secrets are masked, long values are cut.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TextIO, cast

#: Bytes at which the log file is set aside, and how many of those are kept.
FILE_BYTES = 10 * 1024 * 1024
FILES_KEPT = 5

#: Characters of a text, items of a collection and levels of nesting that a line may have.
TEXT_LIMIT = 10_000
ITEM_LIMIT = 100
DEPTH_LIMIT = 6

MASK = "********"

_SECRET_NAME = re.compile(r"(authorization|token|api[-_]?key|password|passwd|secret|cookie)$", re.IGNORECASE)
#: How the keys of model providers begin; ``sk`` are those of OpenAI, Anthropic, OpenRouter and others.
_KEY_PREFIX = "sk|pk|rk|gsk|xai|csk|fw|hf|pplx|nvapi|r8|tgp|vck|ghp|gho|ghu|github_pat"
_SECRET_TEXT = re.compile(
    r"(?i:(?P<kept>\bBearer\s+)[\w.~+/=-]+)"  # RFC 6750
    # With a digit, or the stars of a provider that hides it half: words with hyphens seldom have either.
    rf"|\b(?:{_KEY_PREFIX})[-_](?=[\w.-]{{0,200}}?[\d*])[\w*.-]{{8,}}"
    r"|\b(?:AIza|AQ\.|ABSK|AKIA|ya29\.)[\w*.-]{8,}"  # Google, AWS
    r"|\btorana_[\w-]{32,}"  # our own tokens, also one that was cut
    r"|(?<!\d)\d{6,20}:[\w-]{30,}"  # a Telegram bot's, which stands in the path of each of its addresses
    r"|\beyJ[\w-]{8,2000}\.[\w-]+\.[\w-]+"  # a JSON Web Token (RFC 7519)
    r"|(?<=://)[^/\s@]+(?=@)"  # user and password in a URL
    r"|(?i:(?<=key=)|(?<=token=)|(?<=secret=)|(?<=signature=))[^&\s\"']+"  # a credential in its query
)
#: What could steer a terminal, is not shown, turns the direction of writing or cannot be written as UTF-8;
#: tabs and line ends stay.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
#: Libraries that tell of each of their steps at INFO.
_TALKATIVE = ("alembic", "anthropic", "httpcore", "httpcore2", "httpx", "httpx2", "openai")
#: Libraries of chat platforms log what people say and how we log in: at no level of ours is that told.
_INDISCREET = (
    "aioimaplib",
    "aiosmtplib",
    "discord",
    "markdown_it",
    "nio",
    "slack_sdk",
    "slixmpp",
    "telegram",
    "websockets",
)
#: Libraries that log what strangers send them, a line for each; what counts of it is told by us.
_ECHOING = ("client", "mcp")
#: Which turn a line of the log file belongs to; in a text the quotation marks would be escaped.
_TURN = re.compile(rb'"turn_id": "(\w+)"')
#: What a record has of itself, whoever logs; anything else is a field. uvicorn adds its message in colours.
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_TRACEBACK = "exception"
#: What stands at the beginning of a line for people, without its name.
_HEAD = frozenset({"timestamp", "level", "logger", "event"})
_UNQUOTED = re.compile(r"[^\s=\"'\\]+")
#: Of the terminal (ECMA-48, SGR).
_BOLD, _DIM = 1, 2
_COLOURS = {"debug": 32, "info": 32, "warning": 33, "error": 31, "critical": 31}

_bound: ContextVar[Mapping[str, object]] = ContextVar("torana_bound", default=MappingProxyType({}))

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
    def written(self) -> list[Path]:
        """The file and those that were set aside."""
        files = [Path(self.baseFilename + suffix) for suffix in ("", *(f".{n + 1}" for n in range(FILES_KEPT)))]
        return [file for file in files if file.exists()]

    def drop(self, turn_ids: Set[str]) -> None:
        """Write anew those files that have lines of these turns; what is logged meanwhile waits."""
        self.acquire()
        try:
            for file in self.written():
                _partial(file).unlink(missing_ok=True)  # of a call that was cut off
                _drop_lines(file, turn_ids)
        finally:
            if self.stream is not None:  # it may stand in a file that is no more; the next line opens it anew
                self.stream.close()
                self.stream = None
            self.release()


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
    as_json = _Formatter(json.dumps)
    handlers: list[logging.Handler] = [_Stream(stream)]
    handlers[0].setFormatter(_Formatter(partial(_readable, colours=terminal)) if readable else as_json)
    if file is not None:
        handlers.append(_rotating(file, as_json))
    threshold = logging.getLevelNamesMapping()[level.upper()]
    _install(handlers, threshold)
    _adopt_uvicorn()
    for name in _INDISCREET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _ECHOING:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(threshold if level == "debug" else max(threshold, logging.WARNING))


@contextmanager
def bind(**fields: object) -> Generator[None]:
    """Add fields such as ``request_id`` to all that this task, and those it starts, log inside the block."""
    before = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(before)


def bound() -> Mapping[str, object]:
    """The fields that are added to all that is logged at this place."""
    return _bound.get()


def logged_turns() -> set[str]:
    """The ids of all turns of which the log files tell."""
    return {turn_id for handler in _files() for file in handler.written() for turn_id in _turns_in(file)}


def drop_turns(turn_ids: Set[str]) -> None:
    """Take all that was logged in these turns out of the log files. Raises ``OSError``."""
    for handler in _files():
        handler.drop(turn_ids)


def mask_secrets(event: Mapping[str, object]) -> dict[str, object]:
    """Hide what stands under a telling name, and credentials inside any text; cut what is too long.

    Control characters, but for tabs and line ends, become escapes.
    """
    return {name: _clean(name, value, depth=0) for name, value in event.items()}


def mask_text(text: str) -> str:
    """Hide what looks like a credential: bearer tokens, keys by their prefixes, those in an address."""
    return _SECRET_TEXT.sub(lambda found: f"{found['kept'] or ''}{MASK}", text)


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
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], mask_text(cut))


class _Formatter(logging.Formatter):
    """Writes each line once, for all who ask: a rotating file asks twice, and the other handler too."""

    def __init__(self, render: Callable[[dict[str, object]], str]) -> None:
        super().__init__()
        self._render = render
        #: The last line, and whose it was; that one is not kept alive, for it may hold what a traceback holds.
        self._last: tuple[Callable[[], logging.LogRecord | None], str] = (lambda: None, "")

    def format(self, record: logging.LogRecord) -> str:
        last, line = self._last
        if record is not last():
            line = self._render(mask_secrets(self._event(record)))
            self._last = weakref.ref(record), line
        return line

    def _event(self, record: logging.LogRecord) -> dict[str, object]:
        # From the record, so that the terminal and the file tell the same time.
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event: dict[str, object] = {
            "timestamp": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        own = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        # Before masking, because a traceback may quote a secret.
        if record.exc_info and record.exc_info[0] is not None:
            own[_TRACEBACK] = self.formatException(record.exc_info)
        return event | {name: value for name, value in {**bound(), **own}.items() if name not in event}


def _readable(event: dict[str, object], *, colours: bool) -> str:
    """A line for people, with a traceback below it."""

    def coloured(text: str, colour: int) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colours else text

    level, traceback = str(event["level"]), event.pop(_TRACEBACK, None)
    fields = [f"{name}={_plain(value)}" for name, value in sorted(event.items()) if name not in _HEAD]
    line = " ".join(
        [
            coloured(str(event["timestamp"]), _DIM),
            f"[{coloured(f'{level:<8}', _COLOURS.get(level, _BOLD))}]",
            coloured(_on_one_line(str(event["event"])), _BOLD),
            f"[{event['logger']}]",
            *fields,
        ]
    )
    return line if traceback is None else f"{line}\n{traceback}"


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _plain(value: object) -> str:
    """The value as it is where that cannot be misread."""
    return value if isinstance(value, str) and _UNQUOTED.fullmatch(value) else repr(value)


def _rotating(file: Path, formatter: logging.Formatter) -> logging.Handler:
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = _File(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
    handler.setFormatter(formatter)
    return handler


def _files() -> list[_File]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _File)]


def _turns_in(file: Path) -> set[str]:
    try:
        with file.open("rb") as lines:
            return {found[1].decode() for line in lines if (found := _TURN.search(line))}
    except FileNotFoundError:  # set aside meanwhile, under a name that is looked at next
        return set()


def _partial(file: Path) -> Path:
    return file.with_name(f"{file.name}.part")


def _drop_lines(file: Path, turn_ids: Set[str]) -> None:
    if _turns_in(file).isdisjoint(turn_ids):
        return
    partial = _partial(file)
    with file.open("rb") as lines, partial.open("wb") as kept:
        for line in lines:
            found = _TURN.search(line)
            if found is None or found[1].decode() not in turn_ids:
                kept.write(line)
    partial.replace(file)


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
    """Not that an answer was broken off: whoever did so has said why."""
    return record.msg != "ASGI callable returned without completing response."


def _adopt_uvicorn() -> None:
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = name != "uvicorn.access"
