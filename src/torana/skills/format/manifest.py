"""The requirements of a skill, and the resources that its scripts need.

The resources are programs, hosts, secrets, directories and the scripts' names. They are declared in the block
``torana`` of the front matter's ``metadata``::

    metadata:
      torana:
        bins: [git]
        hosts: [api.example.com]
        secrets: [WEATHER_KEY]
        directories: [/srv/data]
        writable: [/srv/out]
        scripts: [scripts/forecast.py]
        triggers:
          - "forecast for {place}"

Only the operator grants a need. A skill with a declaration that is not understood is invalid, because an
ignored declaration could hide a need.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_address

from torana.skills.errors import SkillInvalid
from torana.skills.format.front_matter import NAMES_LIMIT, Fields, Value, mapping_of, names_of, text_of

BLOCK = "torana"

#: The folder of a skill's scripts if ``scripts`` names none.
SCRIPTS_FOLDER = "scripts/"
NEED_LIMIT = 256

_KEYS = ("bins", "hosts", "secrets", "directories", "writable", "scripts", "triggers")
#: Allowed in this block because they are read from every block; see ``requirements_of``.
_OLDER_KEYS = ("requires", "envVars", "primaryEnv")

_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that a script has anyway, or that change how programs run.
_OWN_VARIABLE = re.compile(r"(?:TORANA_|LD_).*|PATH|HOME|TMPDIR|LANG|TZ|(?:https?|all|no)_proxy", re.IGNORECASE)
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)
_HOST = re.compile(r"(?P<name>[^:\[\]]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
#: Directories of the sandbox itself; ``/`` is refused too.
_SYSTEM = re.compile(r"/(?:proc|sys|dev|run|etc|boot|usr|bin|sbin|lib(?:32|64|x32)?|tmp|skill)(?:/.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The resources that a skill's scripts request, or that the operator granted."""

    #: Names of programs. They are not granted: the sandbox shows all programs of the system.
    bins: tuple[str, ...] = ()
    #: ``name`` (ports 80 and 443) or ``name:port``. A name may be an IP address, IPv6 in brackets.
    hosts: tuple[str, ...] = ()
    #: Names of environment variables.
    secrets: tuple[str, ...] = ()
    #: Absolute, normalised paths with read access.
    directories: tuple[str, ...] = ()
    #: Absolute, normalised paths with read and write access.
    writable: tuple[str, ...] = ()
    #: Files of the skill that may run, relative to its folder.
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Names of environment variables and programs. One program of ``any_bins`` is enough."""

    env: tuple[str, ...]
    bins: tuple[str, ...]
    any_bins: tuple[str, ...]
    #: The variable with the skill's main credential. It is declared, but not always required.
    primary_env: str | None


def requirements_of(metadata: Fields) -> Requirements:
    """Return the requirements of all blocks of ``metadata`` and of ``metadata`` itself.

    The skill format has no field for them. Existing skills declare them under ``metadata``, in a block named
    after an agent (``openclaw``, ``clawdbot``, …), as a mapping or as a JSON string; all such blocks are read
    alike. ``bins`` and ``secrets`` of the block ``torana`` are required too.
    """
    blocks = [metadata, *(mapping_of(value) for value in metadata.values())]
    own = mapping_of(metadata.get(BLOCK))
    requires = [mapping_of(block.get("requires")) for block in blocks]
    primary = (text_of(block.get("primaryEnv")) for block in blocks)
    env = [*(need.get("env") for need in requires), *(list(_required_variables(block)) for block in blocks)]
    return Requirements(
        env=_union([*env, own.get("secrets")]),
        bins=_union([*(need.get("bins") for need in requires), own.get("bins")]),
        any_bins=_union(need.get("anyBins") for need in requires),
        primary_env=next((name for name in primary if name), None),
    )


def _required_variables(block: Fields) -> Iterator[Value]:
    """Yield the names in ``envVars: [{name: …, required: …}]``. The default of ``required`` is true."""
    variables = block.get("envVars")
    for variable in variables if isinstance(variables, list) else []:
        fields = mapping_of(variable)
        if fields.get("required") != "false":
            yield fields.get("name", "")


def _union(values: Iterable[Value | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for value in values for name in names_of(value)))


def needs_of(metadata: Fields, *, required: Requirements, files: Iterable[str]) -> Needs:
    """Return the needs of the block ``torana``, with the ``required`` programs and variables of every block.

    ``files`` are the names of the skill's files. If the block has no list ``scripts``, the files below
    ``scripts/`` may run. Raises ``SkillInvalid`` for a declaration that is not understood. A variable of
    ``required`` that scripts must not have is omitted.
    """
    files = tuple(files)
    block = block_of(metadata)
    found = tuple(name for name in files if name.startswith(SCRIPTS_FOLDER))
    older = [*required.env, *filter(None, [required.primary_env])]
    return Needs(
        bins=_unique([*_parse_names(block, "bins", _program), *required.bins, *required.any_bins]),
        hosts=_parse_names(block, "hosts", _host),
        secrets=_unique(
            [*_parse_names(block, "secrets", _secret), *(name for name in older if _is_secret(name))]
        ),
        directories=_parse_names(block, "directories", _directory),
        writable=_parse_names(block, "writable", _directory),
        scripts=_scripts(block, files=files) if "scripts" in block else found,
    )


def block_of(metadata: Fields) -> Fields:
    """Return the block ``torana``. Raises ``SkillInvalid`` if it is no mapping or has an unknown field."""
    value = metadata.get(BLOCK)
    block = mapping_of(value)
    if value and not block and value != "{}":
        raise SkillInvalid(
            f"metadata.{BLOCK} is not a mapping; write lines such as `hosts: [api.example.com]`."
        )
    for key in block:
        if key not in (*_KEYS, *_OLDER_KEYS):
            near = get_close_matches(key, _KEYS, n=1)
            cure = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(_KEYS)}."
            raise SkillInvalid(f"metadata.{BLOCK} has no field {key!r}; {cure}")
    return block


def entries(block: Fields, key: str) -> list[Value]:
    """Return the list under ``key``; a single text is a list of one. Raises ``SkillInvalid``."""
    value = block.get(key, [])
    single: list[Value] = [value] if text_of(value) else []
    items = value if isinstance(value, list) else single
    if not items and value not in ([], "", "~", "null"):
        raise SkillInvalid(f"metadata.{BLOCK}.{key} is not a list; write `{key}: [one, another]`.")
    if len(items) > NAMES_LIMIT:
        raise SkillInvalid(
            f"metadata.{BLOCK}.{key} has {len(items)} entries; at most {NAMES_LIMIT} are allowed."
        )
    return items


def _parse_names(block: Fields, key: str, check: Callable[[str], str]) -> tuple[str, ...]:
    return _unique(check(text_in(item, key)) for item in entries(block, key))


def text_in(item: Value, key: str) -> str:
    """Return an entry that must be one line of text. Raises ``SkillInvalid``."""
    text = text_of(item)
    if text is None or len(text) > NEED_LIMIT or not text.isprintable():
        raise SkillInvalid(
            f"metadata.{BLOCK}.{key} has an entry that is not a text of at most {NEED_LIMIT} characters; "
            "correct it."
        )
    return text


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _program(name: str) -> str:
    if not _PROGRAM.fullmatch(name):
        raise SkillInvalid(
            f"metadata.{BLOCK}.bins: {name!r} is not the name of a program; write it without its path."
        )
    return name


def _secret(name: str) -> str:
    if not _is_secret(name):
        raise SkillInvalid(
            f"metadata.{BLOCK}.secrets: {name!r} cannot be passed to a script; name an environment variable "
            "such as WEATHER_KEY that neither the gateway nor the sandbox uses."
        )
    return name


def _is_secret(name: str) -> bool:
    return bool(_VARIABLE.fullmatch(name)) and not _OWN_VARIABLE.fullmatch(name)


def _host(text: str) -> str:
    match = _HOST.fullmatch(text.lower())
    if match and 0 < int(match["port"] or 443) < 65536 and _is_host(match["name"]):
        return match[0]
    raise SkillInvalid(
        f"metadata.{BLOCK}.hosts: {text!r} is no host; write a name such as api.example.com, without a scheme "
        "or a path; add a port only if it is not 80 or 443."
    )


def _is_host(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        # A name that ends in a number is a form of an IP address (WHATWG URL, 3.5), and is refused.
        return bool(_HOST_NAME.fullmatch(name)) and not _NUMBER.fullmatch(name.rpartition(".")[2])
    return True


def _directory(path: str) -> str:
    absolute = path.startswith("/") and not path.startswith("//")
    if not absolute or posixpath.normpath(path) != path or path == "/" or _SYSTEM.fullmatch(path):
        raise SkillInvalid(
            f"metadata.{BLOCK}: {path!r} cannot be shown to a script; write a directory's whole path without "
            "'..' or a '/' at its end, such as /srv/data; system directories are not allowed."
        )
    return path


def _scripts(block: Fields, *, files: tuple[str, ...]) -> tuple[str, ...]:
    names = _parse_names(block, "scripts", str)
    for name in names:
        if name not in files:
            raise SkillInvalid(
                f"metadata.{BLOCK}.scripts: the folder has no file {name!r}; add it or correct its "
                "path, which is relative to the folder."
            )
    return names
