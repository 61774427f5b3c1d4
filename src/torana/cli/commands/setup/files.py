"""Change ``.env`` and ``torana.toml``: comments and other values stay, and both files change or neither."""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any, cast

import tomlkit
from dotenv.parser import parse_stream
from tomlkit.exceptions import TOMLKitError

from torana.errors import ConfigInvalid, OperatorError
from torana.telemetry import mask_text

#: The mode of a file of secrets, and of another new file.
_PRIVATE, _PUBLIC = 0o600, 0o644

#: The variables of ``.env`` whose values are shown.
_SHOWN = frozenset({"TORANA_MODEL", "TORANA_MODEL_BASE_URL"})
#: Lines of ``torana.toml`` that are shown: tables, and values on one line that are no tables.
_TABLE = re.compile(r"\s*\[\[?[\w.-]+\]\]?\s*")
_VALUE = re.compile(r'\s*(?P<name>[\w-]+)\s*=\s*(?P<value>"(?:[^"\\]|\\.)*"|[\w.:+-]+)\s*')
_SECRET = re.compile(r"key|token|secret|pass|credential|authorization|header", re.IGNORECASE)
_REFERENCE = re.compile(r'"\$\w+"')
_HIDDEN = "********"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file with its text before and after a change; ``secret`` files are readable by their owner only."""

    path: Path
    before: str
    after: str
    secret: bool = False


def change_dotenv(path: Path, values: Mapping[str, str | None]) -> FileChange:
    """Set variables, or with None remove them."""
    before = read_text(path)
    left = dict(values)
    parts: list[str] = []
    for binding in parse_stream(io.StringIO(before)):
        original = binding.original.string
        name = binding.key
        if name is None or name not in values:
            parts.append(original)
            continue
        # The parser counts the empty lines before a variable as part of it.
        parts.append(original[: len(original) - len(original.lstrip())])
        value = left.pop(name, None)
        if value is not None:
            parts.append(_assignment(name, value))
    text = "".join(parts)
    added = [_assignment(name, value) for name, value in left.items() if value is not None]
    if added and text and not text.endswith("\n"):
        text += "\n"
    return FileChange(path=path, before=before, after=text + "".join(added), secret=True)


def change_toml(path: Path, values: Mapping[Sequence[str], Any]) -> FileChange:
    """Set values by their keys in tables, or with None remove them. Raises ``ConfigInvalid``."""
    document = parse_toml(path)
    before = tomlkit.dumps(document)
    for keys, value in values.items():
        _set(document, keys, value, path)
    return FileChange(path=path, before=before, after=tomlkit.dumps(document))


def parse_toml(path: Path) -> tomlkit.TOMLDocument:
    """Return the document with its comments, empty if the file is missing. Raises ``ConfigInvalid``."""
    try:
        return tomlkit.parse(read_text(path))
    except TOMLKitError as error:
        raise ConfigInvalid(
            f'{path}: not valid TOML: {error}; a text needs quotes, such as model = "openai:gpt-5"'
        ) from error


def read_text(path: Path) -> str:
    """Return the text of a file, empty if it is missing. Raises ``OperatorError``."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise OperatorError(f"{path}: not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise OperatorError(
            f"{path}: cannot be read ({error.strerror}); make it a file that you can read, and run the command "
            "again"
        ) from error


def difference(change: FileChange) -> str:
    """Return the changed lines, with secrets hidden."""
    shown, split = (_hide_variable, _variables) if change.secret else (_hide_value, str.splitlines)
    before, after, name = split(change.before), split(change.after), str(change.path)
    # The lines around a change are left out, because they could be secrets.
    lines = list(unified_diff(before, after, name, name, n=0, lineterm=""))
    head, lines = lines[:2], lines[2:]
    changed = (line if line.startswith("@@") else f"{line[0]}{shown(line[1:])}" for line in lines)
    return "\n".join([*head, *changed])


def write_changes(changes: Iterable[FileChange]) -> None:
    """Write all files. Raises ``OperatorError``, and leaves every file as it was, if one cannot be written."""
    with ExitStack() as temporary:
        staged: list[tuple[FileChange, Path, Path]] = []
        for change in changes:
            # A link stays a link.
            path = change.path.resolve()
            with _reporting_faults(path):
                staged.append((change, path, _stage(change, path, temporary)))
        with ExitStack() as undo:
            for change, path, part in staged:
                restore = partial(_restore, change, path, temporary) if path.exists() else path.unlink
                with _reporting_faults(path):
                    part.replace(path)
                undo.callback(restore)
            undo.pop_all()


@contextmanager
def _reporting_faults(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise OperatorError(
            f"{path}: cannot be written ({error.strerror}); nothing was changed; make the directory "
            "writable or free some space, and run the command again"
        ) from error


def _restore(change: FileChange, path: Path, temporary: ExitStack) -> None:
    _stage(replace(change, after=change.before), path, temporary).replace(path)


def _stage(change: FileChange, path: Path, temporary: ExitStack) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    part = Path(name)
    temporary.callback(part.unlink, missing_ok=True)
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
        file.write(change.after)
        file.flush()
        os.fsync(file.fileno())
    part.chmod(_PRIVATE if change.secret else _PUBLIC)
    if path.exists():
        found = path.stat()
        with suppress(PermissionError):
            os.chown(part, found.st_uid, found.st_gid)
        if not (change.secret and found.st_mode & 0o007):
            part.chmod(found.st_mode & 0o777)
    return part


def _set(document: tomlkit.TOMLDocument, keys: Sequence[str], value: Any, path: Path) -> None:
    table = cast("dict[str, Any]", document)
    for key in keys[:-1]:
        if value is None and key not in table:
            return
        if key not in table:
            table[key] = tomlkit.table(is_super_table=key != keys[-2])
        inner: object = table[key]
        if not isinstance(inner, dict):
            raise ConfigInvalid(f"{path}: {key} is not a table")
        table = cast("dict[str, Any]", inner)
    if value is None:
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = value


def _assignment(name: str, value: str) -> str:
    plain = re.fullmatch(r"[\w.:/@%+,=~-]*", value, re.ASCII)
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{name}={value}\n" if plain else f"{name}='{quoted}'\n"


def _variables(text: str) -> list[str]:
    """Return the variables, each with all lines of its value, and the lines between them."""
    return [binding.original.string.strip("\n") for binding in parse_stream(io.StringIO(text))]


def _hide_variable(assignment: str) -> str:
    name, equals, _ = assignment.partition("=")
    return assignment if name.strip() in _SHOWN else f"{name}{equals}{_HIDDEN}"


def _hide_value(line: str) -> str:
    """Hide a line that contains, or may continue, the value of a secret."""
    if not line.strip() or _TABLE.fullmatch(line):
        return line
    found = _VALUE.fullmatch(line)
    if found is None:
        return _HIDDEN
    if _SECRET.search(found["name"]) and not _REFERENCE.fullmatch(found["value"]):
        return f"{line[: found.start('value')]}{_HIDDEN}"
    return mask_text(line)
