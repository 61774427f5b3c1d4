"""The sources of settings, each read into a ``Source``."""

from __future__ import annotations

import io
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from torana.config.formatting import format_path
from torana.config.settings import Settings, flag, variable
from torana.errors import ConfigInvalid

#: The maximum size of a settings file or ``.env``, in bytes.
FILE_LIMIT = 1_048_576

_PATHS = frozenset(
    name for name, field in Settings.model_fields.items() if field.annotation is Path or name == "mcp_config"
)
_HEADER = re.compile(r"^[ \t]*\[(?P<name>[^\[\]\n]+)\]", re.MULTILINE)
_AT_LINE = re.compile(r"(?P<what>.*) \(at line (?P<line>\d+), column \d+\)", re.DOTALL)


def _nowhere(_name: str) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The settings from one source, with its name for messages.

    Relative paths in ``values`` have been resolved against the source's directory.
    """

    values: Mapping[str, Any]
    #: The origin of a setting, for ``config show``.
    origin: Callable[[str], str]
    #: The name of a setting in this source.
    label: Callable[[str], str]
    #: The file and line of a setting, or of a key such as ``mcp.time.command``, as the start of a message.
    #: Empty if the source is no file.
    place: Callable[[str], str] = _nowhere


@dataclass(frozen=True, kw_only=True)
class DotEnv:
    """The variables of a ``.env`` file with their lines, and the faults in its other lines."""

    variables: Mapping[str, str]
    lines: Mapping[str, int]
    faults: Sequence[str]


def from_flags(flags: Mapping[str, Any], *, cwd: Path) -> Source:
    """Return the settings from the command line, by the names of the settings."""
    return Source(
        values=_resolve_paths(flags, base=cwd),
        origin=lambda name: f"flag {flag(name)}",
        label=flag,
    )


def from_environment(environ: Mapping[str, str], *, cwd: Path) -> Source:
    """Return the settings from the process's ``TORANA_*`` variables."""
    return Source(
        values=_resolve_paths(_settings_in(environ), base=cwd),
        origin=lambda name: f"environment {variable(name)}",
        label=variable,
    )


def from_dotenv(dotenv: DotEnv, *, cwd: Path) -> Source:
    """Return the settings from the ``TORANA_*`` variables of the ``.env`` in ``cwd``."""
    return Source(
        values=_resolve_paths(_settings_in(dotenv.variables), base=cwd),
        origin=lambda _name: ".env",
        label=variable,
        place=lambda name: f".env:{dotenv.lines[variable(name.partition('.')[0])]}: ",
    )


def from_file(path: Path, *, cwd: Path, named_by: str = "") -> Source:
    """Return the settings from the file at ``path``. ``named_by`` begins the message if it cannot be read.

    Raises ``ConfigInvalid`` if the file cannot be read, is too large, or is not TOML.
    """
    file = format_path(path, within=cwd)
    text = _read_text(path, called=f"{named_by}{file}")
    return Source(
        values=_resolve_paths(_parse(text, file=file), base=path.parent),
        origin=lambda _name: f"file {format_path(path)}",
        label=lambda name: name,
        place=lambda name: _file_place(file, line=line_within(name, text=text)),
    )


def read_dotenv(path: Path) -> DotEnv:
    """Read the ``.env`` at ``path`` without expanding ``${…}``. A missing file or a directory is empty.

    Raises ``ConfigInvalid`` if the file cannot be read.
    """
    faults: list[str] = []
    variables: dict[str, str] = {}
    lines: dict[str, int] = {}
    text = _read_text(path, called=path.name) if _is_no_directory(path) else ""
    for binding in parse_stream(io.StringIO(text)):
        # The parser counts the empty lines before a statement as part of it.
        line = binding.original.line + _leading_lines(binding.original.string)
        if binding.error:
            faults.append(f"{path.name}:{line}: not understood; write NAME=value")
        if binding.key is not None and binding.value is not None:
            variables[binding.key] = binding.value
            lines[binding.key] = line
    return DotEnv(variables=variables, lines=lines, faults=faults)


def _is_no_directory(path: Path) -> bool:
    """Return whether the path exists and is no directory. False if the path cannot be accessed."""
    try:
        return path.exists() and not path.is_dir()
    except OSError:
        return False


def path_exists(path: Path) -> bool:
    """Return whether the path exists; a broken link exists too. False if the path cannot be accessed."""
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def line_within(path: str, *, text: str) -> int | None:
    """Return the line on which TOML ``text`` sets ``path``, such as ``port`` or ``mcp.time.command``.

    If the key is not found: the line of the table around it, or of the setting, or None.
    """
    name, _, _ = path.partition(".")
    for header in islice(_HEADER.finditer(text), 200):
        table = re.sub(r"\s*\.\s*", ".", header["name"].strip()).replace('"', "").replace("'", "")
        if "." in table and f"{path}.".startswith(f"{table}.") and _is_whole(text[: header.start()]):
            key = re.escape(path[len(table) + 1 :].partition(".")[0])
            inside = text[header.end() :].partition("\n[")[0]
            found = re.search(rf"^[ \t]*[\"']?{key}[\"']?[ \t]*[=.]", inside, re.MULTILINE) if key else None
            return text.count("\n", 0, header.end() + (found.start() if found else 0)) + 1
    return line_of(name, text=text)


def line_of(key: str, *, text: str) -> int | None:
    """Return the line, from 1, on which TOML ``text`` first sets ``key`` at its top level, or None."""
    pattern = re.compile(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(key)}[\"']?[ \t]*[=.\]]", re.MULTILINE)
    for match in islice(pattern.finditer(text), 20):
        if _is_whole(text[: match.start()]):
            return text.count("\n", 0, match.start()) + 1
    return None


def _file_place(file: str, *, line: int | None) -> str:
    return f"{file}:{line}: " if line else f"{file}: "


def _is_whole(text: str) -> bool:
    """Return whether the text is complete TOML. Text that ends inside a multi-line value is not."""
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True


def _leading_lines(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")


def _settings_in(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in the variables. An empty variable counts as not set.

    An empty token does not: it would silently disable authentication.
    """
    given = {name: variables.get(variable(name)) for name in Settings.model_fields}
    return {name: value for name, value in given.items() if value or (value == "" and name == "gateway_token")}


def _resolve_paths(values: Mapping[str, Any], *, base: Path) -> dict[str, Any]:
    return {name: _from(base, value) if name in _PATHS else value for name, value in values.items()}


def _from(base: Path, value: object) -> object:
    if isinstance(value, str | Path) and not str(value).startswith("~") and str(value):
        return base / value
    return value


def _read_text(path: Path, *, called: str) -> str:
    content = _bytes(path, called=called)
    if len(content) > FILE_LIMIT:
        raise ConfigInvalid(f"{called}: larger than {FILE_LIMIT} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{called}: not UTF-8") from None


def _bytes(path: Path, *, called: str) -> bytes:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ConfigInvalid(f"{called}: not a regular file; opening a pipe would wait for its writer")
        with path.open("rb") as file:
            return file.read(FILE_LIMIT + 1)
    except (FileNotFoundError, ValueError):  # ValueError: a name that no file can have
        raise ConfigInvalid(f"{called}: no such file") from None
    except OSError as error:
        raise ConfigInvalid(f"{called}: cannot be read ({error.strerror})") from None


def _parse(text: str, *, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigInvalid(f"{file}: not valid TOML: nested too deeply") from None
    except ValueError as error:
        found = _AT_LINE.fullmatch(str(error))
        place, what = (f"{file}:{found['line']}", found["what"]) if found else (file, str(error))
        cure = '; a text needs quotes, such as model = "openai:gpt-5"' if what == "Invalid value" else ""
        raise ConfigInvalid(f"{place}: not valid TOML: {what}{cure}") from None
