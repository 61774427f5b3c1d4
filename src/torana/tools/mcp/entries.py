"""Which MCP servers there are, from the settings and from a file in the shape that other clients use."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from torana.errors import ConfigInvalid
from torana.tools.entry_faults import entry_faults
from torana.tools.masking import masked

#: The key under which other clients keep their servers.
USUAL = "mcpServers"

#: Servers that there may be in all, and bytes that a file of them may have.
SERVERS_LIMIT = 50
FILE_LIMIT = 1_048_576

#: A value, or a part of one, that stands in the environment: ``$NAME`` alone, ``${NAME}``, ``${NAME:-else}``.
_VARIABLE = re.compile(
    r"^\$(?P<whole>[A-Za-z_]\w*)$|\$\{(?:env:)?(?P<part>[A-Za-z_]\w*)(?::-(?P<otherwise>[^}]*))?\}", re.ASCII
)
_OWN = "TORANA_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,31}")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s#]*)?(\?[^\s#]*)?")
_TRANSPORTS = frozenset({"stdio", "http", "streamable-http", "streamablehttp", "streamable_http"})

_ONE_WAY = "has to have either command, for a program, or url, for an address"

_log = logging.getLogger(__name__)


def _url(text: str) -> str:
    with suppress(ValueError):
        # The port is read when it is asked for.
        if _URL.fullmatch(text) and urlsplit(text).port != 0:
            return text
    raise ValueError("must be an http or https URL without user and password")


def _directory(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


_Text = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]
_Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,100}$")]
_Header = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]


class Server(BaseModel):
    """A server as the settings name it: a program (``command``) or an address (``url``)."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str
    command: Annotated[_Text, StringConstraints(min_length=1)] | None = None
    args: Annotated[tuple[_Text, ...], Field(max_length=100)] = ()
    env: Mapping[_Variable, SecretStr] = {}
    cwd: Annotated[Path, AfterValidator(_directory)] | None = None
    url: Annotated[str, AfterValidator(_url)] | None = None
    headers: Annotated[
        Mapping[_Header, SecretStr], Field(validation_alias=AliasChoices("headers", "http_headers"))
    ] = {}
    #: Only these of its tools are offered; without it all are.
    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    #: Calls of these may be repeated after a crash.
    idempotent: frozenset[str] = frozenset()
    #: These run without being asked for.
    allow: frozenset[str] = frozenset()
    #: Seconds that a call may take.
    timeout: Annotated[float, Field(gt=0, le=3600)] = 60.0

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError(_ONE_WAY)
        return self

    @property
    def transport(self) -> str:
        """``stdio`` for a program, ``http`` for an address."""
        return "stdio" if self.command is not None else "http"

    @property
    def source(self) -> str:
        """What is connected to, as far as it is no secret: another source is another server."""
        return json.dumps([self.command, *self.args, self.url])

    def wants(self, tool: str) -> bool:
        """Whether the settings let the tool be offered."""
        return tool not in self.exclude and (self.include is None or tool in self.include)

    def masked(self, text: str) -> str:
        """The text without the values of the server's variables and headers."""
        values = [secret.get_secret_value() for secret in (*self.env.values(), *self.headers.values())]
        values += [value.removeprefix("Bearer ") for value in values]
        return masked(text, dict.fromkeys(values, "***"))


def read_servers(
    tables: Mapping[str, Mapping[str, Any]], *, file: Path | None, environ: Mapping[str, str]
) -> list[Server]:
    """The servers of the settings' tables and of the file, without those that are switched off.

    Variables are filled in. Raises ``ConfigInvalid`` with a line for each fault; no value is in it.
    """
    servers, faults = sound_servers(tables, file=file, environ=environ)
    if faults:
        raise ConfigInvalid("\n".join(faults))
    return servers


def sound_servers(
    tables: Mapping[str, Mapping[str, Any]], *, file: Path | None, environ: Mapping[str, str]
) -> tuple[list[Server], list[str]]:
    """Those of the servers whose entries are right, and a line for each fault of the others.

    Raises ``ConfigInvalid`` where the file cannot be read.
    """
    faults: list[str] = []
    found: dict[str, Server] = {}
    for where, name, values, usual in _entries(tables, file):
        try:
            server = _server(where, name, values, environ=environ, usual=usual)
        except ConfigInvalid as error:
            faults += error.detail.splitlines()
            continue
        if server is not None and server.name in found:
            faults.append(f'{where}: another server is called "{server.name}" already; rename one')
        elif server is not None:
            found[server.name] = server
    if len(found) > SERVERS_LIMIT:
        faults.append(f"mcp: more than {SERVERS_LIMIT} servers")
    return list(found.values()), faults


def search_path(environ: Mapping[str, str]) -> str:
    """Where programs are looked for."""
    return environ.get("PATH", os.defpath)


def slug(name: str) -> str:
    """The name as its tools' names begin with it: without ``_``, which ends it there."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _entries(
    tables: Mapping[str, Mapping[str, Any]], file: Path | None
) -> Iterator[tuple[str, str, Mapping[str, Any], bool]]:
    """Where an entry stands, its name, what it says, and whether it is in the shape of other clients."""
    for name, values in tables.items():
        if name == USUAL:
            yield from _usual(f"mcp.{USUAL}", values)
        else:
            yield f"mcp.{name}", name, values, False
    if file is not None:
        yield from _usual(f"{file}: {USUAL}", _read(file))


def _usual(where: str, entries: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any], bool]]:
    for name, values in entries.items():
        if not isinstance(values, dict):
            raise ConfigInvalid(f"{where}.{name}: must be an object with command or url")
        yield f"{where}.{name}", name, cast("Mapping[str, Any]", values), True


def _read(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_LIMIT + 1)
        document: Any = json.loads(content) if len(content) <= FILE_LIMIT else None
    except OSError as error:
        raise ConfigInvalid(f"mcp_config: {file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"mcp_config: {file}: not valid JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get(USUAL), dict):  # pyright: ignore[reportUnknownMemberType]
        raise ConfigInvalid(
            f'mcp_config: {file}: must be an object such as {{"{USUAL}": {{…}}}}, at most 1 MiB'
        )
    return cast("Mapping[str, Any]", document[USUAL])


def _server(
    where: str, name: str, values: Mapping[str, Any], *, environ: Mapping[str, str], usual: bool
) -> Server | None:
    """The server of an entry; None where it is switched off."""
    if values.get("enabled", True) is False or values.get("disabled", False) is True:
        return None
    if not _NAME.fullmatch(name) or not slug(name):
        raise ConfigInvalid(f"{where}: a server's name has 1 to 32 letters, digits, spaces, '.', '_' and '-'")
    transport = values.get("type", values.get("transport", "http"))
    if str(transport).lower() not in _TRANSPORTS:
        raise ConfigInvalid(
            f"{where}: only stdio and streamable HTTP are spoken; give the server's HTTP address"
        )
    unused = {"enabled", "disabled", "type", "transport"}
    if usual:
        unused |= values.keys() - Server.model_fields.keys() - {"http_headers"}
    if ignored := sorted(unused & values.keys() - {"enabled", "disabled", "type", "transport"}):
        _log.warning("parts of an MCP server's entry are not used", extra={"entry": where, "parts": ignored})
    missing: list[str] = []
    own: list[str] = []
    filled = _filled(
        {key: value for key, value in values.items() if key not in unused}, environ, missing.append, own.append
    )
    cure = "set it, or write it into .env"
    faults = [f"{where}: the environment variable {variable} is not set; {cure}" for variable in missing]
    faults += [f"{where}: {variable} is the gateway's own and is not handed to a server" for variable in own]
    if faults:
        raise ConfigInvalid("\n".join(faults))
    return _validated(where, {**filled, "name": slug(name)})


def _validated(where: str, values: Mapping[str, Any]) -> Server:
    try:
        return Server.model_validate(values)
    except ValidationError as error:
        lines = entry_faults(where, error, of=Server)
    # Where something else is wrong, pydantic does not come to what concerns the whole.
    whole = f"{where}: {_ONE_WAY}"
    if ("command" in values) == ("url" in values) and whole not in lines:
        lines.append(whole)
    raise ConfigInvalid("\n".join(lines))


def _filled(
    value: Any, environ: Mapping[str, str], missing: Callable[[str], None], own: Callable[[str], None]
) -> Any:
    """The value with what stands in the environment."""
    if isinstance(value, dict):
        return {
            key: _filled(item, environ, missing, own) for key, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_filled(item, environ, missing, own) for item in cast("Sequence[Any]", value)]
    if not isinstance(value, str):
        return value

    def replacement(found: re.Match[str]) -> str:
        variable = found["whole"] or found["part"]
        if variable.upper().startswith(_OWN):
            own(variable)
        elif variable not in environ and found["otherwise"] is None:
            missing(variable)
        return environ.get(variable) or found["otherwise"] or ""

    return _VARIABLE.sub(replacement, value)
