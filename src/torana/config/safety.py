"""Check the exposure of the gateway: its ports, its listen addresses and its token."""

from __future__ import annotations

import re
from collections.abc import Callable

from torana.config.fields import is_loopback
from torana.config.formatting import format_value
from torana.config.settings import Settings

#: A shorter token can be guessed.
STRONG_LENGTH = 16

_MAKE_ONE = 'make one with python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
#: Values from examples and templates, compared without case and punctuation.
_PLACEHOLDERS = re.compile(
    r"undefined|null|none|nil|password|secret|token|test|default|admin|example"
    r"|.*(change|replace)(me|this|it|with).*|.*placeholder.*|(insert)?your(gateway|secret|api|bearer|torana)*token.*"
)
_TEMPLATE = re.compile(r"\$\{.*\}|\{\{.*\}\}|<.*>")


def refusals(settings: Settings, *, where: Callable[[str], str]) -> list[str]:
    """Return the reasons why these settings must not be served, one line each.

    ``where`` returns the start of a message about a setting.
    """
    return [*_same_port(settings, where), *_reachable(settings, where)]


def _same_port(settings: Settings, where: Callable[[str], str]) -> list[str]:
    if settings.hooks_port != settings.port:
        return []
    return [f"{where('hooks_port')}: {settings.port} is the gateway's own port; choose another"]


def _reachable(settings: Settings, where: Callable[[str], str]) -> list[str]:
    if is_loopback(settings.host):
        return []
    if settings.gateway_token is None:
        return [] if settings.allow_open else [_open(settings, where)]
    weak = weakness(settings.gateway_token.get_secret_value())
    return (
        [f"{where('gateway_token')}: {weak}, and {_describe_listen_addresses(settings)}; {_MAKE_ONE}"]
        if weak
        else []
    )


def cautions(settings: Settings, *, where: Callable[[str], str]) -> list[str]:
    """Return one line for each risk that the operator should know before the gateway starts."""
    if settings.gateway_token is not None:
        weak = weakness(settings.gateway_token.get_secret_value())
        return [f"{where('gateway_token')}: {weak}; {_MAKE_ONE}"] if weak else []
    if is_loopback(settings.host):
        return []
    return [f"{_describe_open_gateway(settings)}; everyone who reaches it can use the agent"]


def weakness(token: str) -> str | None:
    """Return the reason why the token is easy to guess, or None."""
    if _TEMPLATE.fullmatch(token) or _PLACEHOLDERS.fullmatch(re.sub(r"[\W_]", "", token.lower())):
        return "the token is a placeholder"
    if len(token) < STRONG_LENGTH:
        return f"the token has fewer than {STRONG_LENGTH} characters"
    if len(set(token)) < 4:
        return "the token repeats a few characters"
    return None


def _open(settings: Settings, where: Callable[[str], str]) -> str:
    return (
        f"{where('host')}: {_describe_open_gateway(settings)}; set TORANA_GATEWAY_TOKEN ({_MAKE_ONE}), "
        "or TORANA_ALLOW_OPEN=true to allow everyone"
    )


def _describe_open_gateway(settings: Settings) -> str:
    return f"no token is set, and {_describe_listen_addresses(settings)}"


def _describe_listen_addresses(settings: Settings) -> str:
    return f"{format_value(settings.host)} can be reached from other machines"
