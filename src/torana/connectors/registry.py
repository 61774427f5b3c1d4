"""Which sorts of connectors there are; each is imported when it is configured, and not before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from pydantic import ValidationError

from torana.connectors.base import Connector, ConnectorSettings
from torana.errors import ConfigInvalid
from torana.tools.entry_faults import entry_faults, meant

#: Where other packages say which connectors they bring: a name, and the class.
GROUP = "torana.connectors"

#: A value that stands in the environment.
_VARIABLE = re.compile(r"\$[A-Z_][A-Z0-9_]*")

#: The connectors of this package: a module here of that name, with this class.
BUILTIN = {
    "discord": "Discord",
    "dingtalk": "Dingtalk",
    "email": "Email",
    "feishu": "Feishu",
    "irc": "Irc",
    "line": "Line",
    "matrix": "Matrix",
    "slack": "Slack",
    "telegram": "Telegram",
    "webhook": "Webhook",
    "whatsapp": "Whatsapp",
    "xmpp": "Xmpp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A connector as the settings name it: ``[connectors.<name>]``, of the kind of that name or of another.

    ``missing`` has a line for each value such as ``"$BOT_TOKEN"`` whose variable is not set; with any it cannot
    be opened. ``reachable`` tells whether a platform that calls can do so: whether calls are listened for.
    """

    name: str
    kind: str
    values: Mapping[str, Any]
    missing: Sequence[str] = ()
    reachable: bool = True


def read_accounts(
    tables: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str], *, reachable: bool
) -> list[Account]:
    """The accounts that the settings name and do not switch off, with the values of their variables."""
    return [
        _account(name, values, environ, reachable)
        for name, values in tables.items()
        if values.get("enabled", True) is not False
    ]


def kinds_of_people(tables: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """What people's ids may begin with on the accounts that the settings name, also on those switched off."""
    return frozenset(kind for name, table in tables.items() for kind in (name, str(table.get("kind", name))))


def check_accounts(accounts: Sequence[Account]) -> None:
    """Import what the accounts need, and check their settings; nothing is connected. May take seconds.

    Raises ``ConfigInvalid`` with the faults of all of them, a line for each.
    """
    faults = [line for account in accounts for line in _faults(account)]
    if faults:
        raise ConfigInvalid("\n".join(faults))


def _faults(account: Account) -> list[str]:
    try:
        open_connector(account)
    except ConfigInvalid as error:
        return [_placed(account, line) for line in error.detail.splitlines()]
    except Exception as error:  # noqa: BLE001 - a library that fails at its import is its connector's fault
        return [_placed(account, f"{type(error).__name__}: {error}")]
    return []


def _placed(account: Account, line: str) -> str:
    where = f"connectors.{account.name}"
    return line if line.startswith((f"{where}:", f"{where}.")) else f"{where}: {line}"


def _account(name: str, table: Mapping[str, Any], environ: Mapping[str, str], reachable: bool) -> Account:
    missing: list[str] = []
    values = {key: value for key, value in table.items() if key != "kind"}
    filled = _filled(values, f"connectors.{name}", environ, missing)
    kind = str(table.get("kind", name))
    return Account(name=name, kind=kind, values=filled, missing=tuple(missing), reachable=reachable)


def _filled(value: Any, place: str, environ: Mapping[str, str], missing: list[str]) -> Any:
    """The value, and all in it, with its variables' values; ``missing`` is told of those that are not set."""
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        return {key: _filled(item, f"{place}.{key}", environ, missing) for key, item in inner.items()}
    if isinstance(value, list):
        return [_filled(item, place, environ, missing) for item in cast("list[Any]", value)]
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        return value
    if value[1:] not in environ:
        cure = "set it, or write it into .env"
        missing.append(f"{place}: the environment variable {value[1:]} is not set; {cure}")
    return environ.get(value[1:], value)


def load(kind: str) -> type[Connector[Any]]:
    """The class of a kind; may take seconds. Raises ``ConfigInvalid`` with the line that installs it."""
    if kind in BUILTIN:
        return _builtin(kind)
    found = _brought()
    if kind not in found:
        hint = meant(kind, _kinds()) or f"; there are {', '.join(sorted(_kinds()))}"
        raise ConfigInvalid(f'there is no connector "{kind}"{hint}')
    return cast("type[Connector[Any]]", found[kind].load())


def _brought() -> dict[str, EntryPoint]:
    """The connectors of other packages."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _kinds() -> set[str]:
    return {*BUILTIN, *_brought()}


def open_connector(account: Account) -> Connector[Any]:
    """A connector with its settings, not connected. Raises ``ConfigInvalid`` with a line for each fault."""
    if account.missing:
        raise ConfigInvalid("\n".join(account.missing))
    kind = load(account.kind)
    connector = kind(_read_settings(account, kind))
    # One that is told events does its work uncalled.
    if not account.reachable and _is_called(kind) and not connector.events:
        raise ConfigInvalid(
            f"connectors.{account.name}: its platform calls the gateway; set TORANA_HOOKS_PORT, which holds "
            "from the next start"
        )
    return connector


def _is_called(kind: type[Connector[Any]]) -> bool:
    """Whether the platform calls the gateway, instead of being asked by it."""
    own, base = cast("tuple[Any, Any]", (kind, Connector))
    return own.hook is not base.hook


def _read_settings(account: Account, kind: type[Connector[Any]]) -> ConnectorSettings:
    """What the settings say of the account. Raises ``ConfigInvalid``; no value is in its text."""
    if not kind.global_ids and account.name != account.kind and account.name in _kinds():
        # Its people are called by its name, and would be taken for those of that kind.
        raise ConfigInvalid(
            f"connectors.{account.name}: an account of {account.kind} cannot have the name of another kind of "
            "connector; give it another one"
        )
    try:
        return kind.Settings.model_validate(dict(account.values))
    except ValidationError as error:
        lines = entry_faults(f"connectors.{account.name}", error, of=kind.Settings)
    raise ConfigInvalid("\n".join(lines))


def _builtin(kind: str) -> type[Connector[Any]]:
    try:
        module = import_module(f"torana.connectors.{kind}")
    except ImportError as error:
        if (error.name or "").startswith("torana"):
            raise
        raise ConfigInvalid(
            f"the connector {kind} needs a library that is not installed ({error.name}); "
            f"install it with: pip install 'torana[{kind}]'"
        ) from error
    return cast("type[Connector[Any]]", getattr(module, BUILTIN[kind]))
