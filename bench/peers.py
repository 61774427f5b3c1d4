"""Other agent gateways, which the benchmark measures with the same model in the same run."""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.client import Connection
from bench.load import Send
from bench.servers import Server, free_port, running, wait_for

_ROOT = Path(__file__).parents[1]

#: hermes-agent requires a key; it refuses one of fewer than 16 characters.
_HERMES_KEY = "benchmark-key-of-this-machine"

_fresh = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another gateway: how to install it, start it and send it a message in a new session.

    ``run`` takes the folder of the peer's programs, a folder for its data, and the model's base URL.
    """

    name: str
    requirement: str
    run: Callable[[Path, Path, str], AbstractContextManager[Server]]
    send: Send

    @property
    def programs(self) -> Path:
        """Return the folder of the programs of the peer's own environment."""
        return _ROOT / f".venv-{self.name}" / "bin"

    def install(self) -> None:
        """Install the peer into its own environment, if it is not there yet."""
        if not (self.programs / self.name).exists():
            venv.create(self.programs.parent, with_pip=True)
            pip = [str(self.programs / "python"), "-m", "pip", "install", "--quiet", self.requirement]
            subprocess.run(pip, check=True)


@contextmanager
def _nanobot(programs: Path, home: Path, model_url: str) -> Generator[Server]:
    port = free_port()
    provider = {"apiKey": "none", "apiBase": model_url}
    defaults = {"model": "instant", "provider": "custom", "workspace": str(home / "workspace")}
    config = _write(home / "config.json", {"providers": {"custom": provider}, "agents": {"defaults": defaults}})
    command = [str(programs / "nanobot"), "serve", "--port", str(port), "--config", str(config)]
    with running(command, {"HOME": str(home)}, port, home) as server:
        wait_for(f"{server.url}/health")
        yield server


async def _to_nanobot(connection: Connection, _: int) -> None:
    question = {"role": "user", "content": "hello"}
    await connection.post("/v1/chat/completions", {"messages": [question], "session_id": f"s{next(_fresh)}"})


@contextmanager
def _hermes(programs: Path, home: Path, model_url: str) -> Generator[Server]:
    port = free_port()
    model = {"provider": "custom", "default": "instant", "base_url": model_url, "api_key": "none"}
    # By default it refuses the 11th message at a time with 429.
    api = {"max_concurrent_runs": 0}
    # JSON is YAML.
    _write(home / "config.yaml", {"model": model, "gateway": {"api_server": api}})
    environ = {
        "HOME": str(home),
        "HERMES_HOME": str(home),
        "API_SERVER_ENABLED": "true",
        "API_SERVER_KEY": _HERMES_KEY,
        "API_SERVER_PORT": str(port),
    }
    with running([str(programs / "hermes"), "gateway", "run"], environ, port, home) as server:
        wait_for(f"{server.url}/health")
        yield server


async def _to_hermes(connection: Connection, _: int) -> None:
    # hermes-agent names the session by the first message.
    question = {"role": "user", "content": f"hello {next(_fresh)}"}
    await connection.post("/v1/chat/completions", {"messages": [question]}, token=_HERMES_KEY)


def _write(path: Path, settings: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings))
    return path


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="nanobot", requirement="nanobot-ai[api]==0.3.5", run=_nanobot, send=_to_nanobot),
        Peer(name="hermes", requirement="hermes-agent[messaging]==0.19.0", run=_hermes, send=_to_hermes),
    )
}
