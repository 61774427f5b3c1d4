"""``torana serve``: run the gateway."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torana import __version__
from torana.cli.apps import new_app
from torana.cli.flags import ConfigFlag, DataDirFlag, settings_from
from torana.errors import DataDirUnusable

if TYPE_CHECKING:
    from torana.config import Loaded, Settings

app = new_app()

#: Seconds that the process gets to end after everything is closed.
_EXIT_TIMEOUT = 1.0

_TO_A_REAL_MODEL = """\
  The builtin model follows fixed rules. To choose a language model and connect a chat platform:
    torana setup"""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on (TORANA_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on (TORANA_PORT).")] = None,
    model: Annotated[str | None, typer.Option(help="The language model (TORANA_MODEL).")] = None,
    data_dir: DataDirFlag = None,
    skills_dir: Annotated[
        str | None, typer.Option("--skills-dir", help=("The directory of your own skills (TORANA_SKILLS_DIR)."))
    ] = None,
    config: ConfigFlag = None,
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM."""
    from torana import http11
    from torana.cli.collector import freeze_objects, paused_collector
    from torana.cli.gateway import Gateway, listen
    from torana.store.engine.lock import DataDirLock

    with paused_collector():
        loaded = settings_from(
            host=host, port=port, model=model, data_dir=data_dir, skills_dir=skills_dir, config=config
        )
        settings = loaded.settings
        with DataDirLock(data_dir=settings.data_dir, address=_address(settings)):
            _log_to(_log_file(settings), settings)
            http11.raise_open_files()
            listener = listen(settings.host, settings.port)
            gateway = Gateway(
                loaded=loaded,
                on_built=freeze_objects,
                on_ready=lambda: _print_start(loaded),
                on_closed=_leave_behind,
            )
            gateway.run(listener)


def _leave_behind() -> None:
    """End the process soon, even if a tool still runs in a thread, which cannot be stopped."""
    end = threading.Timer(_EXIT_TIMEOUT, os._exit, [0])
    end.daemon = True
    end.start()


def _log_file(settings: Settings) -> Path:
    return settings.data_dir / "logs" / "torana.log"


def _log_to(file: Path, settings: Settings) -> None:
    from torana.telemetry import configure_logging

    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        configure_logging(level=settings.log_level, format=settings.log_format, file=file, stream=sys.stderr)
    except OSError as error:
        raise DataDirUnusable(
            f"cannot write {file}: {error.strerror or error}; fix its permissions, or choose another --data-dir"
        ) from error


def _print_start(loaded: Loaded) -> None:
    settings = loaded.settings
    address = _address(settings)
    token = " -H 'Authorization: Bearer '$TORANA_GATEWAY_TOKEN" if settings.gateway_token else ""
    lines = [
        f"Torana {__version__} listens on {address}",
        f"  data   {settings.data_dir}",
        f"  log    {_log_file(settings)}",
        f"  model  {', then '.join(settings.model)}",
        '  try    curl --json \'{"content": "what is 17 % of 2,340"}\'' + f"{token} {address}/message",
    ]
    if settings.model == ("builtin",):
        lines.append(_TO_A_REAL_MODEL)
    typer.echo("\n".join(lines))


def _address(settings: Settings) -> str:
    """Return the address at which this machine reaches the gateway, also if it listens on all addresses."""
    host = settings.host
    with suppress(ValueError):  # a name, not an IP address
        address = ip_address(host)
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings.port}"
