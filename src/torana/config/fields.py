"""The types of the settings: how each is validated, and how it is described in messages."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

import tzlocal
from pydantic import AfterValidator, BeforeValidator, Field, HttpUrl, SecretStr, StringConstraints

from torana.limits.policies import parse_limit
from torana.limits.prices import parse_price
from torana.messages import FileKind
from torana.permissions import Rule

_HOST_NAME = re.compile(r"(?=.{1,253}$)(\w([\w-]{0,61}\w)?)(\.\w([\w-]{0,61}\w)?)*", re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values of a setting or of a list's items, as the words after "is not …"."""

    words: str


def split(value: object) -> object:
    """Split a list that is written as one text: a JSON array, or values separated by commas."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return document(value)


def document(value: object) -> object:
    """Return a text parsed as JSON; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError from None


def lower(value: object) -> object:
    """Return a text in lower case, and any other value unchanged."""
    return value.lower() if isinstance(value, str) else value


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``. The only such name is ``localhost``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def system_timezone() -> str:
    """Return the system's IANA time zone, or ``UTC`` if it has none that is known."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return _zone(tzlocal.get_localzone_name() or "UTC")
    except (LookupError, ValueError, OSError):
        return "UTC"


# The validators raise ValueError without a text: the text comes from the field's `Allowed`.


def _demand(condition: bool, value: T) -> T:
    if not condition:
        raise ValueError
    return value


def _not_bool(value: object) -> object:
    return _demand(not isinstance(value, bool), value)


def _host(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        return _demand(_HOST_NAME.fullmatch(text) is not None, text.lower())


def _network(text: str) -> str:
    return str(ip_network(text, strict=False))


def _url(text: str) -> str:
    url = HttpUrl(text)
    return _demand(not (url.username or url.password or url.query or url.fragment), text)


def _origin(text: str) -> str:
    # Browsers send an origin in lower case, without a default port and trailing slash (RFC 6454).
    url = HttpUrl(_url(text))
    return _demand(url.path in {None, "/"}, str(url).rstrip("/"))


def _zone(text: str) -> str:
    try:
        return ZoneInfo(text).key
    except (LookupError, OSError):
        raise ValueError from None


def _path(value: object) -> object:
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    text.encode()  # a path that UTF-8 cannot encode cannot be printed or logged
    try:
        return _demand(text != "" and "\0" not in text, Path(text)).expanduser()
    except RuntimeError:
        raise ValueError from None


def _limit(text: str) -> str:
    return _demand(parse_limit(text).label != "messages-minute", text)


def _token_limit(text: str) -> str:
    return _demand(bool(parse_limit(text)), text)


def _price(text: str) -> str:
    return _demand(bool(parse_price(text)), text)


def _matching(pattern: str) -> AfterValidator:
    """Return the validator of a secret that matches the whole pattern."""

    def check(secret: SecretStr) -> SecretStr:
        return _demand(re.fullmatch(pattern, secret.get_secret_value()) is not None, secret)

    return AfterValidator(check)


Whole = Annotated[int, BeforeValidator(_not_bool)]
Host = Annotated[str, AfterValidator(_host), Allowed("an IP address or a host name")]
Directory = Annotated[Path, BeforeValidator(_path), Allowed("a path")]
Zone = Annotated[str, AfterValidator(_zone), Allowed("an IANA time zone such as Europe/Vienna")]
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=20_000), Allowed("a text of 1 to 20,000 characters")
]
Secret = Annotated[
    Annotated[SecretStr, _matching(r"[!-~]{1,512}")] | None,
    Allowed("visible ASCII, 1 to 512 characters without spaces"),
]
DatabaseUrl = Annotated[
    Annotated[SecretStr, _matching(r"postgres(ql)?://[!-~]{1,2000}")] | None,
    Allowed("a URL such as postgresql://user:password@host:5432/database"),
]
ClusterName = Annotated[
    Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] | None,
    Allowed("1 to 63 small letters, digits, `.`, `-` and `_`"),
]
RedisUrl = Annotated[
    Annotated[SecretStr, _matching(r"(rediss?|unix)://[!-~]{1,2000}")] | None,
    Allowed("a URL such as redis://user:password@host:6379/0"),
]
BaseUrl = Annotated[
    Annotated[str, AfterValidator(_url)] | None,
    Allowed("an http or https URL without credentials, query and fragment, such as http://127.0.0.1:8000/v1"),
]

#: In a variable: a JSON array, or values separated by commas.
ListOf = Annotated[tuple[T, ...], BeforeValidator(split), Field(max_length=100)]

Hosts = Annotated[
    ListOf[Annotated[str, AfterValidator(_host)]], Allowed("a host name or an IP address, without a port")
]
Networks = Annotated[
    ListOf[Annotated[str, AfterValidator(_network)]], Allowed("an IP address or a network such as 10.0.0.0/8")
]
Origins = Annotated[
    ListOf[Annotated[str, AfterValidator(_origin)]], Allowed("an origin such as https://chat.example.org")
]
Models = Annotated[
    ListOf[Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]],
    Field(min_length=1, max_length=10),
    Allowed("a model name such as builtin or openai-chat:gpt-5"),
]
FileKinds = Annotated[ListOf[Annotated[FileKind, BeforeValidator(lower)]], Allowed("text, image or pdf")]
EmbeddingModel = Annotated[
    Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")] | None,
    Allowed("an embedding model's name such as openai:text-embedding-3-small"),
]
Functions = Annotated[
    ListOf[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]],
    Allowed("a function such as mytools.weather:forecast"),
]

ToolPatterns = Annotated[
    ListOf[Annotated[str, StringConstraints(min_length=1, max_length=256)]],
    Allowed("a tool's name or a pattern such as github_*"),
]

#: A table for each connector, by its account's name. In a variable it is JSON.
ConnectorTables = Annotated[
    Mapping[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")], Mapping[str, Any]],
    BeforeValidator(document),
    Field(max_length=50),
    Allowed("a table for each connector, such as [connectors.telegram]; its name has only a-z, 0-9, _ and -"),
]

PermissionRules = Annotated[
    tuple[Rule, ...],
    BeforeValidator(document),
    Field(max_length=500),
    Allowed("a table with tool and permission (allow, ask or deny), and optionally user, token and skill"),
]

#: A table for each MCP server by its name, and under ``mcpServers`` those in the format of other clients.
McpTables = Annotated[
    Mapping[str, Mapping[str, Any]],
    BeforeValidator(document),
    Field(max_length=50),
    Allowed("a table for each MCP server, such as [mcp.time], with command or url"),
]
OptionalFile = Annotated[Annotated[Path, BeforeValidator(_path)] | None, Allowed("a path")]

_A_LIMIT = "a limit such as 500 messages/day, 100000 tokens/minute, 5 usd/month or 3 turns"

BudgetLimits = Annotated[
    ListOf[Annotated[str, AfterValidator(_limit)]],
    Allowed(f"{_A_LIMIT} (rate_per_user and rate_global limit messages per minute)"),
]
TokenLimits = Annotated[ListOf[Annotated[str, AfterValidator(_token_limit)]], Allowed(_A_LIMIT)]
OwnPrices = Annotated[
    ListOf[Annotated[str, AfterValidator(_price)]],
    Allowed(
        "a model with its price in dollars per million input and output tokens, such as "
        "openai-chat:my-model 0.15 0.60"
    ),
]
