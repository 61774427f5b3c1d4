"""Connect a chat platform: ask for its settings, and check the account behind them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
import typer
from pydantic import SecretStr

from torana.cli.commands.setup.questions import Questions, known_secret
from torana.cli.terminal import on_one_line
from torana.connectors.registry import Account, load, open_connector
from torana.errors import OperatorError
from torana.models.providers import checked_key

NONE = "none"

#: The platforms in the order of the question; other kinds of connectors can be named with ``--platform``.
_TITLES: Mapping[str, str] = {
    NONE: "No chat platform now",
    "telegram": "Telegram: a bot of @BotFather",
    "discord": "Discord: a bot of https://discord.com/developers",
    "slack": "Slack: an app with socket mode",
    "matrix": "Matrix: an account on any server",
    "email": "Email: a mailbox with IMAP and SMTP",
    "xmpp": "XMPP: an account on any server",
    "irc": "IRC: a nick on a network",
}

#: Seconds to wait for the platform, and for one poll for the first message.
_PLATFORM_TIMEOUT, _POLL = 15.0, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedPlatform:
    """A chat platform with its settings: in ``table`` a secret is a reference to one of the ``variables``."""

    kind: str
    table: Mapping[str, Any]
    variables: Mapping[str, str] = field(repr=False)
    #: The account's name on the platform, and the address that opens a chat with it, if they are known.
    account: str | None = None
    link: str | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """The settings with their secrets."""
        return {name: self.variables.get(str(value)[1:], value) for name, value in self.table.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSender:
    """The sender of the first message to an account."""

    id: str
    name: str
    text: str


def connect(
    ask: Questions,
    *,
    kind: str | None,
    options: Sequence[str],
    environ: Mapping[str, str],
    current: Mapping[str, Any],
) -> ConnectedPlatform | None:
    """Return the chosen platform, or None. ``current`` holds the settings of accounts by their kind.

    Raises ``OperatorError`` if its library is missing, a setting is invalid, or the platform refuses it.
    """
    kind = kind or ask.choose("Connect a chat platform?", _TITLES, default=NONE, flag="--platform")
    if kind == NONE:
        return None
    settings = load(kind).Settings
    given = dict(_pair(option) for option in options)
    table: dict[str, Any] = dict(current.get(kind, {})) | given
    variables: dict[str, str] = {}
    for name, info in settings.model_fields.items():
        if not info.is_required():
            continue
        question = f"{kind}: {info.description or name}"
        if info.annotation is not SecretStr:
            table[name] = table.get(name) or ask.ask(question, flag=f"--option {name}=VALUE")
            continue
        reference = str(table.get(name, ""))
        variable = reference[1:] if reference.startswith("$") else _variable(kind, name)
        variables[variable] = known_secret(ask, variable, environ) or ask.secret(question, flag=variable)
        table[name] = f"${variable}"
    found = ConnectedPlatform(kind=kind, table=table, variables=variables)
    # Validates the settings. The listener for platforms' calls is checked by the gateway.
    open_connector(Account(name=kind, kind=kind, values=found.values, missing=(), reachable=True))
    account, link = _CHECKS.get(kind, _unchecked)(found.values)
    return ConnectedPlatform(kind=kind, table=table, variables=variables, account=account, link=link)


def first_messages(platform: ConnectedPlatform) -> Iterator[FirstSender | None]:
    """Yield None after each poll without a message, and then the sender of the first message.

    The message is not confirmed to the platform, so that the gateway receives and answers it.
    """
    while True:
        updates = _telegram(platform.values, "getUpdates", timeout=_POLL, allowed_updates=["message"])
        for update in updates:
            message = update.get("message", {})
            sender = message.get("from")
            if sender and message["chat"]["type"] == "private":
                name = " ".join(filter(None, (sender.get("first_name"), sender.get("last_name"))))
                yield FirstSender(id=str(sender["id"]), name=name, text=str(message.get("text", "")))
        if updates:
            time.sleep(1)  # Telegram returns unconfirmed updates of other chats at once
        yield None


def show_link(platform: ConnectedPlatform) -> None:
    """Print how to open a chat with the account."""
    if platform.account:
        typer.echo(on_one_line(f"{platform.kind}: connected as {platform.account}"))
    if platform.link:
        typer.echo(on_one_line(f"Open {platform.link} and send a message."))


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not equals:
        raise OperatorError(f"--option {option}: write NAME=VALUE")
    return name, value


def _variable(kind: str, name: str) -> str:
    return f"{kind}_{'bot_token' if name == 'token' else name}".upper()


def _unchecked(_values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    return None, None


def _token(values: Mapping[str, Any], name: str) -> str:
    """Return a token that fits into a header: the client's error for another token would contain the token."""
    return checked_key(name, str(values[name]))


def _check_telegram(values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    me = _telegram(values, "getMe")
    return f"@{me['username']}", f"https://t.me/{me['username']}"


def _check_discord(values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    headers = {"Authorization": f"Bot {_token(values, 'token')}"}
    url = str(values.get("api_url", "https://discord.com/api/v10"))
    me = _call("Discord", f"{url}/users/@me", headers=headers)
    return str(me["username"]), f"https://discord.com/oauth2/authorize?client_id={me['id']}&scope=bot"


def _check_slack(values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    headers = {"Authorization": f"Bearer {_token(values, 'bot_token')}"}
    me = _call("Slack", "https://slack.com/api/auth.test", headers=headers)
    if not me["ok"]:
        raise OperatorError(f"Slack refused the bot token ({me['error']}); copy it again")
    return f"{me['user']} in {me['team']}", str(me["url"])


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str | None, str | None]]] = {
    "telegram": _check_telegram,
    "discord": _check_discord,
    "slack": _check_slack,
}


def _telegram(values: Mapping[str, Any], method: str, **arguments: Any) -> Any:
    url = str(values.get("api_url", "https://api.telegram.org")).rstrip("/")
    token = _token(values, "token")
    return _call("Telegram", f"{url}/bot{token}/{method}", body=arguments, secret=token)["result"]


def _call(
    platform: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    secret: str = "",
) -> dict[str, Any]:
    """Return the platform's response. Raises ``OperatorError`` with the reason and the cure."""
    try:
        answer = httpx2.request(
            "GET" if body is None else "POST",
            url,
            headers=headers,
            json=body,
            timeout=_PLATFORM_TIMEOUT + _POLL,
        )
        document: Any = answer.json()
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        reason = str(error).replace(secret, "…") if secret else str(error)
        raise OperatorError(f"{platform} did not respond: {reason}; check the network, and try again") from None
    if answer.status_code in (401, 403, 404):
        raise OperatorError(f"{platform} refused the token; copy the token again")
    if answer.is_error or not isinstance(document, dict):
        raise OperatorError(f"{platform} answered with status {answer.status_code}; try again later")
    return cast("dict[str, Any]", document)
