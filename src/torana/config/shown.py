"""The settings as people may see them: without secrets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torana.config.loading import Loaded
from torana.config.settings import SECRETS, TABLES, Settings

#: The text in place of a secret that is set.
HIDDEN = "********"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """A setting with its value in JSON. ``origin`` is as in ``Loaded``."""

    name: str
    value: Any
    default: Any
    origin: str


def shown_settings(loaded: Loaded) -> list[ShownSetting]:
    """Return all settings in the order of their definition, without secrets.

    Of the tables ``connectors`` and ``mcp``, the keys are shown and all values are hidden.
    """
    values = loaded.settings.model_dump(mode="json")
    values |= {name: HIDDEN for name in SECRETS if values[name] is not None}
    values |= {name: dict.fromkeys(values[name], HIDDEN) for name in TABLES}
    defaults = Settings().model_dump(mode="json")
    return [
        ShownSetting(name=name, value=values[name], default=defaults[name], origin=origin)
        for name, origin in loaded.origins.items()
    ]
