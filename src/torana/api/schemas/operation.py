"""Bodies of the settings and the log."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from torana.api.schemas.base import Page, Wire


class SettingBody(Wire):
    """A setting. Secrets are hidden, and so are all values in the tables `connectors` and `mcp`."""

    name: str
    value: Any
    default: Any
    origin: str
    """`default`, `.env`, `file …`, `environment TORANA_PORT` or `flag --port`."""


class SettingsBody(Page[SettingBody]):
    """All settings, on one page."""


class LogLineBody(Wire):
    """A line of the log. Secrets are masked when it is written."""

    at: str
    level: str
    logger: str
    event: Annotated[str, Field(description="The name of the event, or the message that a library logged.")]
    fields: dict[str, Any]


class LogBody(Wire):
    """The newest lines, the newest first."""

    items: list[LogLineBody]
    complete: Annotated[bool, Field(description="False if older lines were not read.")]
