"""Read the MCP servers from the settings, and from a file in the format of other clients."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
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

from torana.characters import is_header_value
from torana.errors import ConfigInvalid
from torana.tools.redaction import mask
from torana.tools.validation_messages import entry_faults, map_texts

#: The key of the servers in the files of other clients.
SERVERS_KEY = "mcpServers"

#: Maximum number of servers, and size of a file in bytes.
SERVERS_LIMIT = 50
FILE_LIMIT = 1_048_576

#: A reference to an environment variable: ``$NAME`` as the whole value, ``${NAME}``, ``${NAME:-else}``.
_VARIABLE = re.compile(
    r"^\$(?P<whole>[A-Za-z_]\w*)$|\$\{(?:env:)?(?P<part>[A-Za-z_]\w*)(?::-(?P<otherwise>[^}]*))?\}", re.ASCII
)
_RESERVED_PREFIX = "TORANA_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,31}")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s#]*)?(\?[^\s#]*)?")
_TRANSPORTS = frozenset({"stdio", "http", "streamable-http", "streamablehttp", "streamable_http"})

_COMMAND_OR_URL = "set either command, for a program, or url, for a server at a URL"

_log = logging.getLogger(__name__)


def _url(text: str) -> str:
    with suppress(ValueError):
        # urlsplit checks the port only on access.
        if _URL.fullmatch(text) and urlsplit(text).port != 0:
            return text
    raise ValueError("must be an http or https URL without user and password")


def _directory(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _header_value(secret: SecretStr) -> SecretStr:
    if not is_header_value(secret.get_secret_value()):
        raise ValueError("must be printable ASCII, without a space or line break at the beginning or end")
    return secret


_Text = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]
_Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,100}$")]
_Header = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]


class Server(BaseModel):
    """A server of the settings: a program (``command``) or a URL (``url``)."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str
    command: Annotated[_Text, StringConstraints(min_length=1)] | None = None
    args: Annotated[tuple[_Text, ...], Field(max_length=100)] = ()
    env: Mapping[_Variable, SecretStr] = {}
    cwd: Annotated[Path, AfterValidator(_directory)] | None = None
    url: Annotated[str, AfterValidator(_url)] | None = None
    headers: Annotated[
        Mapping[_Header, Annotated[SecretStr, AfterValidator(_header_value)]],
        Field(validation_alias=AliasChoices("headers", "http_headers")),
    ] = {}
    #: The names of the tools to offer; None for all.
    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    #: Calls of these tools may be repeated after a crash.
    idempotent: frozenset[str] = frozenset()
    #: These tools run without approval.
    allow: frozenset[str] = frozenset()
    #: Timeout of a call, in seconds.
    timeout: Annotated[float, Field(gt=0, le=3600)] = 60.0

    @model_validator(mode="after")
    def _check_command_or_url(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError(_COMMAND_OR_URL)
        return self

    @property
    def transport(self) -> str:
        """Return ``stdio`` for a program, ``http`` for a URL."""
        return "stdio" if self.command is not None else "http"

    @property
    def source(self) -> str:
        """Return the command or URL without ``env`` and ``headers``. Another source means another server."""
        return json.dumps([self.command, *self.args, self.url])

    def is_offered(self, tool: str) -> bool:
        return tool not in self.exclude and (self.include is None or tool in self.include)

    def mask(self, text: str, *, limit: int) -> str:
        """Return the start of a text, with the values of the server's variables and headers as ``***``.

        The result has at most ``limit`` characters. The rest of a long text is not searched.
        """
        values = [secret.get_secret_value() for secret in (*self.env.values(), *self.headers.values())]
        values += [value.removeprefix("Bearer ") for value in values]
        longest = max(map(len, values), default=0)
        masked = mask(text[: limit + longest], dict.fromkeys(values, "***"))
        # The cut can leave the start of a value at the end, unmasked.
        complete = masked if len(text) <= limit + longest else masked[: len(masked) - longest]
        return complete[:limit]


def read_servers(
    tables: Mapping[str, Mapping[str, Any]], *, file: Path | None, environ: Mapping[str, str]
) -> list[Server]:
    """Return the enabled servers of the settings' tables and of the file, with variables substituted.

    Raises ``ConfigInvalid`` with one line for each fault, without values.
    """
    servers, faults = valid_servers(tables, file=file, environ=environ)
    if faults:
        raise ConfigInvalid("\n".join(faults))
    return servers


def valid_servers(
    tables: Mapping[str, Mapping[str, Any]], *, file: Path | None, environ: Mapping[str, str]
) -> tuple[list[Server], list[str]]:
    """Return the servers with valid entries, and one line for each fault of the others.

    Raises ``ConfigInvalid`` if the file cannot be read.
    """
    faults: list[str] = []
    found: dict[str, Server] = {}
    for where, name, values, foreign in _entries(tables, file):
        try:
            server = _server(where, name, values, environ=environ, foreign=foreign)
        except ConfigInvalid as error:
            faults += error.detail.splitlines()
            continue
        if server is not None and server.name in found:
            faults.append(f'{where}: another server is also called "{server.name}"; rename one of them')
        elif server is not None:
            found[server.name] = server
    if len(found) > SERVERS_LIMIT:
        faults.append(f"mcp: more than {SERVERS_LIMIT} servers; remove some")
    return list(found.values()), faults


def search_path(environ: Mapping[str, str]) -> str:
    """Return the value of PATH, in which programs of servers are searched."""
    return environ.get("PATH", os.defpath)


def slug(name: str) -> str:
    """Return the prefix of the names of a server's tools. It has no ``_``, because ``_`` ends the prefix."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _entries(
    tables: Mapping[str, Mapping[str, Any]], file: Path | None
) -> Iterator[tuple[str, str, Mapping[str, Any], bool]]:
    """Yield each entry's location, name and content, and whether it has the format of other clients."""
    for name, values in tables.items():
        if name == SERVERS_KEY:
            yield from _foreign_entries(f"mcp.{SERVERS_KEY}", values)
        else:
            yield f"mcp.{name}", name, values, False
    if file is not None:
        yield from _foreign_entries(f"{file}: {SERVERS_KEY}", _read_file(file))


def _foreign_entries(
    where: str, entries: Mapping[str, Any]
) -> Iterator[tuple[str, str, Mapping[str, Any], bool]]:
    for name, values in entries.items():
        if not isinstance(values, dict):
            raise ConfigInvalid(f"{where}.{name}: must be an object with command or url")
        yield f"{where}.{name}", name, cast("Mapping[str, Any]", values), True


def _read_file(file: Path) -> Mapping[str, Any]:
    try:
        if file.exists() and not file.is_file():
            raise ConfigInvalid(f"mcp_config: {file}: not a regular file")
        with file.open("rb") as stream:
            content = stream.read(FILE_LIMIT + 1)
        document: Any = json.loads(content) if len(content) <= FILE_LIMIT else None
    except OSError as error:
        raise ConfigInvalid(f"mcp_config: {file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"mcp_config: {file}: not valid JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get(SERVERS_KEY), dict):  # pyright: ignore[reportUnknownMemberType]
        raise ConfigInvalid(
            f'mcp_config: {file}: must be an object such as {{"{SERVERS_KEY}": {{…}}}}, at most 1 MiB'
        )
    return cast("Mapping[str, Any]", document[SERVERS_KEY])


def _server(
    where: str, name: str, values: Mapping[str, Any], *, environ: Mapping[str, str], foreign: bool
) -> Server | None:
    """Return the server of an entry; None if it is disabled."""
    if values.get("enabled", True) is False or values.get("disabled", False) is True:
        return None
    if not _NAME.fullmatch(name) or not slug(name):
        raise ConfigInvalid(
            f"{where}: a server's name must begin with a letter or digit, and have at most 32 "
            "letters, digits, spaces, '.', '_' or '-'"
        )
    transport = values.get("type", values.get("transport", "http"))
    if str(transport).lower() not in _TRANSPORTS:
        raise ConfigInvalid(f"{where}: only stdio and streamable HTTP are supported; set the server's HTTP URL")
    unused = {"enabled", "disabled", "type", "transport"}
    if foreign:
        unused |= values.keys() - Server.model_fields.keys() - {"http_headers"}
    if ignored := sorted(unused & values.keys() - {"enabled", "disabled", "type", "transport"}):
        _log.warning("mcp_entry_keys_ignored", extra={"entry": where, "keys": ignored})
    missing: list[str] = []
    reserved: list[str] = []

    def fill(found: re.Match[str]) -> str:
        variable = found["whole"] or found["part"]
        if variable.upper().startswith(_RESERVED_PREFIX):
            reserved.append(variable)
        elif variable not in environ and found["otherwise"] is None:
            missing.append(variable)
        return environ.get(variable) or found["otherwise"] or ""

    used = {key: value for key, value in values.items() if key not in unused}
    filled = map_texts(used, where, lambda _, text: _VARIABLE.sub(fill, text))
    cure = "set it, or write it into .env"
    faults = [f"{where}: the environment variable {variable} is not set; {cure}" for variable in missing]
    faults += [
        f"{where}: {variable} belongs to the gateway and is not passed to servers" for variable in reserved
    ]
    if faults:
        raise ConfigInvalid("\n".join(faults))
    return _validate_server(where, {**filled, "name": slug(name)})


def _validate_server(where: str, values: Mapping[str, Any]) -> Server:
    try:
        return Server.model_validate(values)
    except ValidationError as error:
        lines = entry_faults(where, error, of=Server)
    # After a fault in a field, pydantic does not run the check of the whole model.
    message = f"{where}: {_COMMAND_OR_URL}"
    if ("command" in values) == ("url" in values) and message not in lines:
        lines.append(message)
    raise ConfigInvalid("\n".join(lines))
