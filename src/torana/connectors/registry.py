"""The kinds of connectors; each module is imported only when an account of its kind is configured."""

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
from torana.installation import this_installation
from torana.tools.validation_messages import entry_faults, map_texts, suggest_name

#: The entry point group of connectors in other packages: a name, and the class.
GROUP = "torana.connectors"

#: A setting whose value is an environment variable.
_VARIABLE = re.compile(r"\$[A-Z_][A-Z0-9_]*")

#: The connectors of this package: module name and class name.
BUILTIN = {
    "discord": "Discord",
    "dingtalk": "Dingtalk",
    "email": "Email",
    "feishu": "Feishu",
    "irc": "Irc",
    "line": "LineConnector",
    "matrix": "Matrix",
    "slack": "Slack",
    "telegram": "Telegram",
    "webhook": "Webhook",
    "whatsapp": "Whatsapp",
    "xmpp": "Xmpp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A connector in the settings: ``[connectors.<name>]``; ``kind`` is the name unless the table sets it.

    ``missing`` has a line for each value such as ``"$BOT_TOKEN"`` whose variable is not set; such an account
    cannot be opened. ``reachable`` says whether the gateway listens for calls from platforms.
    """

    name: str
    kind: str
    values: Mapping[str, Any]
    missing: Sequence[str] = ()
    reachable: bool = True


def read_accounts(
    tables: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str], *, reachable: bool
) -> list[Account]:
    """Return the enabled accounts of the settings, with the values of environment variables."""
    return [
        _account(name, values, environ, reachable)
        for name, values in tables.items()
        if values.get("enabled", True) is not False
    ]


def sender_prefixes(tables: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Return the prefixes of sender ids: the names and platforms of all accounts, including disabled ones."""
    return frozenset(kind for name, table in tables.items() for kind in (name, str(table.get("kind", name))))


def check_accounts(accounts: Sequence[Account]) -> None:
    """Import the accounts' connectors, and check their settings, without connecting. May take seconds.

    Raises ``ConfigInvalid`` with one line for each fault of any account.
    """
    faults = [line for account in accounts for line in _faults(account)]
    if faults:
        raise ConfigInvalid("\n".join(faults))


def _faults(account: Account) -> list[str]:
    try:
        open_connector(account)
    except ConfigInvalid as error:
        return [_with_account_prefix(account, line) for line in error.detail.splitlines()]
    except Exception as error:  # noqa: BLE001 - a library that fails at its import is its connector's fault
        return [_with_account_prefix(account, f"{type(error).__name__}: {error}")]
    return []


def _with_account_prefix(account: Account, line: str) -> str:
    where = f"connectors.{account.name}"
    return line if line.startswith((f"{where}:", f"{where}.")) else f"{where}: {line}"


def _account(name: str, table: Mapping[str, Any], environ: Mapping[str, str], reachable: bool) -> Account:
    missing: list[str] = []
    values = {key: value for key, value in table.items() if key != "kind"}

    def fill(place: str, text: str) -> str:
        if not _VARIABLE.fullmatch(text):
            return text
        if text[1:] not in environ:
            cure = "set it, or write it into .env"
            missing.append(f"{place}: the environment variable {text[1:]} is not set; {cure}")
        return environ.get(text[1:], text)

    filled = map_texts(values, f"connectors.{name}", fill)
    kind = str(table.get("kind", name))
    return Account(name=name, kind=kind, values=filled, missing=tuple(missing), reachable=reachable)


def load(kind: str) -> type[Connector[Any]]:
    """Return the class of a kind; may take seconds. Raises ``ConfigInvalid`` with the install command."""
    if kind in BUILTIN:
        return _builtin(kind)
    found = _third_party_connectors()
    if kind not in found:
        hint = suggest_name(kind, _kinds()) or f"; there are {', '.join(sorted(_kinds()))}"
        raise ConfigInvalid(f'there is no connector "{kind}"{hint}')
    return cast("type[Connector[Any]]", found[kind].load())


def _third_party_connectors() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _kinds() -> set[str]:
    return {*BUILTIN, *_third_party_connectors()}


def open_connector(account: Account) -> Connector[Any]:
    """Return an unconnected connector. Raises ``ConfigInvalid`` with one line for each fault."""
    if account.missing:
        raise ConfigInvalid("\n".join(account.missing))
    kind = load(account.kind)
    connector = kind(_read_settings(account, kind))
    # A connector that only posts events needs no calls.
    if not account.reachable and _is_called(kind) and not connector.events:
        raise ConfigInvalid(
            f"connectors.{account.name}: its platform calls the gateway; set TORANA_HOOKS_PORT and restart the "
            "gateway"
        )
    return connector


def _is_called(kind: type[Connector[Any]]) -> bool:
    own, base = cast("tuple[Any, Any]", (kind, Connector))
    return own.hook is not base.hook


def _read_settings(account: Account, kind: type[Connector[Any]]) -> ConnectorSettings:
    """Return the validated settings of the account. Raises ``ConfigInvalid`` without any value in its text."""
    if not kind.global_ids and account.name != account.kind and account.name in _kinds():
        # The user ids of the account's senders begin with its name, and could equal user ids of that other
        # kind.
        raise ConfigInvalid(
            f"connectors.{account.name}: an account of {account.kind} cannot have the name of another kind of "
            "connector; rename the account"
        )
    try:
        return kind.Settings.model_validate(dict(account.values))
    except ValidationError as error:
        lines = entry_faults(f"connectors.{account.name}", error, of=kind.Settings)
    raise ConfigInvalid("\n".join(lines))


def _builtin(kind: str) -> type[Connector[Any]]:
    try:
        module = import_module(f"torana.connectors.platforms.{kind}")
    except ImportError as error:
        if (error.name or "").startswith("torana"):
            raise
        raise ConfigInvalid(
            f"the connector {kind} needs a library that is not installed ({error.name}); "
            f"run: {this_installation().extra_command(kind)}"
        ) from error
    return cast("type[Connector[Any]]", getattr(module, BUILTIN[kind]))
