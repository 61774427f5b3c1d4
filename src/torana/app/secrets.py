"""The environment variables that hold secrets of the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from torana.config import PREFIX, Loaded
from torana.models.providers import KEY_VARIABLES

#: A reference to a variable in the settings of connectors and MCP servers.
_REFERENCE = re.compile(r"\$\{?(?:env:)?([A-Za-z_]\w*)", re.ASCII)
#: Variables that libraries and programs read by convention. Settings may name them, but they are not removed.
_CONVENTIONAL = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|PWD|TZ|TMPDIR|LANG|LC_\w+|XDG_\w+|PYTHON\w*|SSL_CERT_\w+|\w+_PROXY|\w+_CA_BUNDLE",
    re.IGNORECASE,
)

#: The headers of exported traces, which may contain a key.
_EXPORT_HEADERS = frozenset({"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})


def secret_variables(loaded: Loaded) -> frozenset[str]:
    """Return the names of the variables that may be removed after the gateway is built.

    They are the gateway's own settings, the keys of model providers and collectors, and the variables that the
    settings of connectors and MCP servers name. ``loaded.provider_environ`` keeps their values.
    """
    settings = loaded.settings
    own = {name for name in loaded.provider_environ if name.upper().startswith(PREFIX)}
    texts = [*_texts(settings.connectors), *_texts(settings.mcp)]
    if settings.mcp_config is not None:
        texts.append(settings.mcp_config.read_text(encoding="utf-8", errors="replace"))
    named = {name for text in texts for name in _REFERENCE.findall(text)}
    named = {name for name in named if not _CONVENTIONAL.fullmatch(name)}
    return KEY_VARIABLES.union(own, named, _EXPORT_HEADERS)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from _texts(item)
