"""The operator's tools: functions named in the settings, or offered by an installed package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

from torana.errors import ConfigInvalid

ENTRY_POINTS = "torana.tools"


def load_tools(names: Sequence[str]) -> list[Callable[..., Any]]:
    """Import the functions named ``package.module:function``, then those of the entry points ``torana.tools``.

    Raises ``ConfigInvalid`` with the reason for a function that cannot be imported.
    """
    return [_import_function(name) for name in names] + list(_functions_of_packages())


def _import_function(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigInvalid(f"TORANA_TOOLS: {name}: {error}; install it, or put it on PYTHONPATH") from error
    except Exception as error:
        raise ConfigInvalid(f"TORANA_TOOLS: {name}: its module failed: {error!r}") from error
    if not hasattr(module, attribute):
        raise ConfigInvalid(f"TORANA_TOOLS: {name}: {module_name} has no {attribute!r}")
    return _check_callable(getattr(module, attribute), f"TORANA_TOOLS: {name}")


def _functions_of_packages() -> Iterator[Callable[..., Any]]:
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            found = point.load()
        except Exception as error:
            raise ConfigInvalid(f"entry point {ENTRY_POINTS}:{point.name} failed: {error!r}") from error
        yield _check_callable(found, f"entry point {ENTRY_POINTS}:{point.name}")


def _check_callable(found: Any, origin: str) -> Callable[..., Any]:
    if not (inspect.isroutine(found) and getattr(found, "__name__", "").isidentifier()):
        raise ConfigInvalid(f"{origin} is not a function with a name of its own")
    return found
