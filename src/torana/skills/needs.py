"""What a skill's scripts want of the machine: programs, hosts, secrets and directories, and which scripts.

It stands in the block ``torana`` of the front matter's ``metadata``::

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

A wish is granted by nobody but the operator. As more than advice stands here, what cannot be understood makes
the skill invalid instead of being passed over.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_address

from torana.skills.faults import SkillInvalid
from torana.skills.front_matter import NAMES_LIMIT, Fields, Value, mapping_of, text_of
from torana.skills.requirements import BLOCK, Requirements

#: Where a skill keeps its scripts unless ``scripts`` names them.
SCRIPTS_FOLDER = "scripts/"
NEED_LIMIT = 256

_KEYS = ("bins", "hosts", "secrets", "directories", "writable", "scripts", "triggers")
#: Read from every block, so they may stand in this one too; see ``requirements``.
_OLDER_KEYS = ("requires", "envVars", "primaryEnv")

_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What a script is given anyway, or what would change how programs run.
_OWN_VARIABLE = re.compile(r"(?:TORANA_|LD_).*|PATH|HOME|TMPDIR|LANG|TZ|(?:https?|all|no)_proxy", re.IGNORECASE)
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)
_HOST = re.compile(r"(?P<name>[^:\[\]]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
#: What the sandbox has of its own; ``/`` is refused too.
_SYSTEM = re.compile(r"/(?:proc|sys|dev|run|etc|boot|usr|bin|sbin|lib(?:32|64|x32)?|tmp|skill)(?:/.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a skill's scripts may use: as its front matter wishes it, or as the operator granted it."""

    #: Programs by name. They are there or not: the sandbox shows the system's programs anyway.
    bins: tuple[str, ...] = ()
    #: ``name`` (ports 80 and 443) or ``name:port``; an IP address stands for itself, IPv6 in brackets.
    hosts: tuple[str, ...] = ()
    #: Names of environment variables.
    secrets: tuple[str, ...] = ()
    #: Absolute, normalised paths that are read.
    directories: tuple[str, ...] = ()
    #: Likewise, read and written.
    writable: tuple[str, ...] = ()
    #: Files of the skill that may be run, relative to its folder.
    scripts: tuple[str, ...] = ()


def needs_of(metadata: Fields, *, required: Requirements, files: Iterable[str]) -> Needs:
    """What the block ``torana`` declares, and the ``required`` programs and variables of every block.

    ``files`` are the names of the skill's files: without ``scripts``, those below ``scripts/`` may be run.
    Raises ``SkillInvalid`` for a declaration that is not understood. A variable of ``required`` that no
    script may be given is left out.
    """
    files = tuple(files)
    block = block_of(metadata)
    found = tuple(name for name in files if name.startswith(SCRIPTS_FOLDER))
    older = [*required.env, *filter(None, [required.primary_env])]
    return Needs(
        bins=_unique([*_checked(block, "bins", _program), *required.bins, *required.any_bins]),
        hosts=_checked(block, "hosts", _host),
        secrets=_unique([*_checked(block, "secrets", _secret), *(name for name in older if _is_secret(name))]),
        directories=_checked(block, "directories", _directory),
        writable=_checked(block, "writable", _directory),
        scripts=_scripts(block, files=files) if "scripts" in block else found,
    )


def block_of(metadata: Fields) -> Fields:
    """The block ``torana``; raises ``SkillInvalid`` when it is no mapping or has a field that is not known."""
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
    """What is listed under ``key``; a single text is a list of one. Raises ``SkillInvalid``."""
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


def _checked(block: Fields, key: str, check: Callable[[str], str]) -> tuple[str, ...]:
    return _unique(check(text_in(item, key)) for item in entries(block, key))


def text_in(item: Value, key: str) -> str:
    """An entry that must be a line of text; raises ``SkillInvalid``."""
    text = text_of(item)
    if text is None or len(text) > NEED_LIMIT or not text.isprintable():
        raise SkillInvalid(
            f"metadata.{BLOCK}.{key} has an entry that is no text of at most {NEED_LIMIT} characters; "
            "correct it."
        )
    return text


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _program(name: str) -> str:
    if not _PROGRAM.fullmatch(name):
        raise SkillInvalid(f"metadata.{BLOCK}.bins: {name!r} is no program's name; write it without its path.")
    return name


def _secret(name: str) -> str:
    if not _is_secret(name):
        raise SkillInvalid(
            f"metadata.{BLOCK}.secrets: {name!r} cannot be handed to a script; name an environment variable "
            "such as WEATHER_KEY, and none that the gateway or the sandbox uses itself."
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
        "or a path, and a port behind it only where it is not 80 or 443."
    )


def _is_host(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        # What ends in a number is another way to write an address (WHATWG URL, 3.5), and is not read.
        return bool(_HOST_NAME.fullmatch(name)) and not _NUMBER.fullmatch(name.rpartition(".")[2])
    return True


def _directory(path: str) -> str:
    absolute = path.startswith("/") and not path.startswith("//")
    if not absolute or posixpath.normpath(path) != path or path == "/" or _SYSTEM.fullmatch(path):
        raise SkillInvalid(
            f"metadata.{BLOCK}: {path!r} cannot be shown to a script; write a directory's whole path without "
            "'..' or a '/' at its end, such as /srv/data, and none of the system's."
        )
    return path


def _scripts(block: Fields, *, files: tuple[str, ...]) -> tuple[str, ...]:
    names = _checked(block, "scripts", str)
    for name in names:
        if name not in files:
            raise SkillInvalid(
                f"metadata.{BLOCK}.scripts: the folder has no file {name!r}; add it or correct its "
                "path, which is relative to the folder."
            )
    return names
