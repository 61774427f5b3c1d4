"""A gateway process under attack, and a model server that answers as the attacker wants."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.health import accepts_messages, certificates
from tests.waiting import eventually

from torana.testing.openai_server import Answer, ChatRequest, OpenAIStandIn


class GatewayProcess:
    """A ``torana serve`` process with a home directory of its own."""

    def __init__(self, *, home: Path, settings: Mapping[str, str], toml: str) -> None:
        """``settings`` are names of settings without ``TORANA_``; ``toml`` is the text of ``torana.toml``."""
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port: int = listener.getsockname()[1]
        home.mkdir(parents=True, exist_ok=True)
        (home / "torana.toml").write_text(toml)
        self.home = home
        self.data_dir = home / "data"
        self.url = f"http://127.0.0.1:{port}"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": str(home),
            "TORANA_DATA_DIR": str(self.data_dir),
            "TORANA_TIMEZONE": "UTC",
            "TORANA_RATE_PER_USER": "0",
            "TORANA_RATE_GLOBAL": "0",
            **{f"TORANA_{name.upper()}": value for name, value in settings.items()},
        }
        self._command = [sys.executable, "-m", "torana", "serve", "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, prefix: tuple[str, ...] = ()) -> None:
        """Start the process, behind the command ``prefix`` if there is one, and wait until it is ready."""
        with (self.home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*prefix, *self._command], cwd=self.home, env=self.environ, stdout=output, stderr=output
            )
        eventually(self._is_ready)

    @property
    def process(self) -> psutil.Process:
        """The started process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def output(self) -> str:
        """The text that the process has written to its standard output and error."""
        return (self.home / "output").read_text(errors="replace")

    def client(self, *, token: str | None = None, timeout: float = 60) -> httpx2.Client:
        """An HTTP client of the gateway."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(
            base_url=self.url, timeout=timeout, trust_env=False, headers=headers, verify=certificates()
        )

    def create_tokens(self, *users: str, operator: str) -> list[str]:
        """Create a token for each user with the operator's token."""
        with self.client(token=operator) as client:
            return [client.post("/v1/tokens", json={"user": user}).json()["token"] for user in users]

    def run_command(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``torana`` with these arguments in the gateway's home directory and environment."""
        return subprocess.run(
            [sys.executable, "-m", "torana", *arguments],
            cwd=self.home,
            env={**self.environ, "TORANA_PORT": self.url.rpartition(":")[2]},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def cpu_seconds(self) -> float:
        """The processor time that the process and its living descendants have used."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in processes)

    def terminate(self) -> None:
        """Stop the process in order, and wait for its end."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def kill(self) -> None:
        """Kill the process alone; programs that it started may continue."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Kill the process and its descendants. Idempotent."""
        if self._process is None or self._process.poll() is not None:
            return
        for child in self.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # the end of a namespace's first process ends the others
                child.kill()
        self.kill()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.output
        return accepts_messages(f"{self.url}/health")


@pytest.fixture
def new_gateway(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """``new_gateway(toml="", **settings)`` makes a gateway process, not yet started; killed at the end."""
    with ExitStack() as stack:

        def make(*, toml: str = "", **settings: str) -> GatewayProcess:
            gateway = GatewayProcess(home=tmp_path / "home", settings=settings, toml=toml)
            stack.callback(gateway.stop)
            return gateway

        yield make


@pytest.fixture
def new_model() -> Iterator[Callable[..., OpenAIStandIn]]:
    """``new_model(rule)`` starts an OpenAI-compatible server that answers by the rule.

    A gateway uses it with the settings ``model="openai-chat:stand-in"``, ``model_api_key`` and
    ``model_base_url=server.url``.
    """
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(OpenAIStandIn(*arguments, **options))


@pytest.fixture
def start_asking_gateway(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> Callable[..., GatewayProcess]:
    """``start_asking_gateway(rule, token)`` starts a gateway in which each call of ``calculate`` is asked."""

    def start(rule: Callable[[ChatRequest], Answer], token: str) -> GatewayProcess:
        gateway = new_gateway(
            gateway_token=token,
            model="openai-chat:stand-in",
            model_api_key="none",
            model_base_url=new_model(reply=rule).url,
            permissions=json.dumps([{"tool": "calculate", "permission": "ask"}]),
        )
        gateway.start()
        return gateway

    return start
