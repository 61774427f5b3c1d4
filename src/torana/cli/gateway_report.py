"""Describe the running gateway, and compare its settings with those of this folder."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from torana import __version__
from torana.cli.remote import RunningGateway, running_gateway
from torana.errors import OperatorError

if TYPE_CHECKING:
    from torana.config import Loaded, Settings

#: The number of characters of a value that are shown.
_SHOWN = 50


def describe_gateway(loaded: Loaded) -> str:
    """Describe the gateway on the data directory, or state that none runs.

    Raises ``OperatorError`` if it cannot work, if it has another token, or if its address is taken.
    """
    settings = loaded.settings
    gateway = running_gateway(settings)
    if gateway is None:
        return _describe_free_address(settings)
    health = _read_health(gateway.address)
    if health is None:
        raise OperatorError(
            f"{gateway.address} holds the data directory but does not respond; stop that process"
        )
    if health["status"] in ("degraded", "draining"):
        raise OperatorError(f"running at {gateway.address}, but {health['status']}; its log shows the cause")
    if health["status"] == "starting":
        return f"running at {gateway.address}, and still starting"
    status, remote_settings = _read_state(gateway)
    return "\n".join((_describe(gateway, status), *_differences(loaded, status, remote_settings)))


def _describe_free_address(settings: Settings) -> str:
    from torana.cli.gateway import listen

    try:
        with listen(settings.host, settings.port):
            return f"not running; {settings.host}:{settings.port} is free"
    except OperatorError as error:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{settings.port}"
        if _read_health(address) is None:
            raise
        directory = "another data directory"
        with suppress(OperatorError):  # that gateway may need a token, and must not see this one
            _, remote_settings = _read_state(RunningGateway(address=address, headers={}))
            directory = f"the data directory {remote_settings['data_dir']['value']}"
        raise OperatorError(
            f"a gateway at {address} uses {directory}, and this folder uses {settings.data_dir}; name its "
            "directory with --data-dir, or choose another --port here"
        ) from error


def _read_health(address: str) -> dict[str, Any] | None:
    """Return what ``GET /health`` reports, or None if no gateway responds."""
    import httpx2

    try:
        document: Any = httpx2.get(f"{address}/health", timeout=10, trust_env=False).json()
    except (httpx2.HTTPError, ValueError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) and "status" in document else None


def _read_state(gateway: RunningGateway) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the status of the gateway, and its settings by their names."""
    status: dict[str, Any] = gateway.ask("GET", "/v1/status", read=dict)
    settings = gateway.ask(
        "GET", "/v1/settings", read=lambda document: {one["name"]: one for one in document["items"]}
    )
    return status, settings


def _describe(gateway: RunningGateway, status: dict[str, Any]) -> str:
    connectors = ", ".join(f"{one['account']} ({one['state']})" for one in status["connectors"])
    return (
        f"running at {gateway.address}, version {status['version']}, with the data directory of this folder\n"
        f"model {', '.join(status['model'])}; connectors: {connectors or 'none'}"
    )


def _differences(
    loaded: Loaded, status: dict[str, Any], remote_settings: dict[str, dict[str, Any]]
) -> list[str]:
    """Return a line for each change that a restart with the settings of this folder would make."""
    from torana.config.shown import shown_settings

    lines = [
        f"{here.name}: {_text(other)} there, {_text({'value': here.value, 'origin': here.origin})} here"
        for here in shown_settings(loaded)
        if (other := remote_settings.get(here.name)) is not None and other["value"] != here.value
    ]
    if status["version"] != __version__:
        lines.append(f"version: {status['version']} there, {__version__} installed here")
    return ["warning: it differs from this folder; a restart here would change:", *lines] if lines else []


def _text(setting: dict[str, Any]) -> str:
    value: object = setting["value"]
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''} ({setting['origin']})"
