"""Where the gateway may be reached: on which ports, when from other machines, and with which token."""

from __future__ import annotations

import re
from collections.abc import Callable

from torana.config.fields import is_loopback
from torana.config.settings import Settings
from torana.config.wording import shown

#: Characters below which a token can be guessed.
STRONG_LENGTH = 16

_MAKE_ONE = 'make one with python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
#: What examples and forgotten templates leave behind, compared without case and signs.
_PLACEHOLDERS = re.compile(
    r"undefined|null|none|nil|password|secret|token|test|default|admin|example"
    r"|.*(change|replace)(me|this|it|with).*|.*placeholder.*|(insert)?your(gateway|secret|api|bearer|torana)*token.*"
)
_TEMPLATE = re.compile(r"\$\{.*\}|\{\{.*\}\}|<.*>")


def refusals(settings: Settings, *, where: Callable[[str], str]) -> list[str]:
    """Why these settings must not be served: a line for each reason.

    ``where`` tells how a message about a setting begins.
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
    return [f"{where('gateway_token')}: {weak}, and {_reached(settings)}; {_MAKE_ONE}"] if weak else []


def cautions(settings: Settings, *, where: Callable[[str], str]) -> list[str]:
    """What an operator should know of settings that may be served: a line for each."""
    if settings.gateway_token is not None:
        weak = weakness(settings.gateway_token.get_secret_value())
        return [f"{where('gateway_token')}: {weak}; {_MAKE_ONE}"] if weak else []
    if is_loopback(settings.host):
        return []
    return [f"{_unguarded(settings)}; whoever reaches it may use the agent"]


def weakness(token: str) -> str | None:
    """What makes the token easy to guess, or None."""
    if _TEMPLATE.fullmatch(token) or _PLACEHOLDERS.fullmatch(re.sub(r"[\W_]", "", token.lower())):
        return "the token is a placeholder"
    if len(token) < STRONG_LENGTH:
        return f"the token has fewer than {STRONG_LENGTH} characters"
    if len(set(token)) < 4:
        return "the token repeats a few characters"
    return None


def _open(settings: Settings, where: Callable[[str], str]) -> str:
    return (
        f"{where('host')}: {_unguarded(settings)}; set TORANA_GATEWAY_TOKEN ({_MAKE_ONE}), "
        "or TORANA_ALLOW_OPEN=true to let everybody in"
    )


def _unguarded(settings: Settings) -> str:
    return f"no token is set, and {_reached(settings)}"


def _reached(settings: Settings) -> str:
    return f"{shown(settings.host)} is reached from other machines"
