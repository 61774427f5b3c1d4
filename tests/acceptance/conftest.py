"""Fixtures that run the installed gateway as a user does, outside the source tree."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.health import accepts_messages, certificates
from tests.parts import require
from tests.standins.gate import Gate
from tests.standins.servers import free_port
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]


class Gateway:
    """``torana serve`` in an empty home directory, which can be started several times."""

    def __init__(self, *, commands: Path, home: Path, settings: Mapping[str, str]) -> None:
        self.home = home
        self.data_dir = home / "data"
        self.skills_dir = self.data_dir / "skills"
        self.log_file = self.data_dir / "logs" / "torana.log"
        self.stderr = home / "stderr"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self._command = [str(commands / "torana"), "serve", "--port", str(self.port)]
        self.environ = {
            "PATH": f"{commands}:/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONWARNINGS": "default",  # warnings would appear on standard error
            "TORANA_DATA_DIR": str(self.data_dir),
            "TORANA_TIMEZONE": "UTC",
            "TORANA_RATE_PER_USER": "0",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the gateway, and wait until it prints its address."""
        assert self._process is None
        with self.stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.home,
                env=self.environ,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,  # the process that stops it reads the rest
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self._append_output(said)
        assert b"listens on" in said, self.stderr.read_text()

    def stop(self, signal_: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal_)
        with process:
            try:
                self._append_output(process.communicate(timeout=PATIENCE)[0])
            finally:
                process.kill()
            return process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the running gateway."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until the gateway ends by itself, and return the exit code."""
        assert self._process is not None
        self._append_output(self._process.communicate(timeout=PATIENCE)[0])
        process, self._process = self._process, None
        return process.wait()

    def close(self) -> None:
        """Stop the gateway if it runs."""
        if self._process is not None:
            self.stop(signal.SIGKILL)

    def written_output(self) -> str:
        """Return everything that the gateway has written."""
        files = (self.stderr, self.home / "stdout", self.log_file)
        return "\n".join(file.read_text() for file in files if file.exists())

    def _append_output(self, said: bytes) -> None:
        with (self.home / "stdout").open("ab") as stdout:
            stdout.write(said)


@pytest.fixture
def new_gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Makes gateways, not yet started, with their own settings and home directories.

    They run the command in the directory ``commands``, or the one of the ``installed`` wheel.
    """
    with ExitStack() as made:

        def make(commands: Path | None = None, *, home: str = "home", **settings: str) -> Gateway:
            directory = tmp_path / home
            directory.mkdir()
            found: Path = commands or request.getfixturevalue("installed")
            gateway = Gateway(commands=found, home=directory, settings=settings)
            made.callback(gateway.close)
            return gateway

        yield make

    for log in tmp_path.glob("*/data/logs/torana.log"):
        with log.open(errors="replace") as lines:  # pytest shows its output if the test has failed
            sys.stdout.writelines(line for line in lines if '"level": "info"' not in line)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate for a tool, opened at the end of the test."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def publish(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Publishes a gateway under ``/api/`` with a real nginx, and returns the new URL."""
    with ExitStack() as running:

        def start(gateway: Gateway, *, strips_prefix: bool) -> str:
            nginx = require("nginx", "nginx-light")
            port = free_port()
            configuration = tmp_path / "nginx.conf"
            target = f"http://127.0.0.1:{gateway.port}{'/' if strips_prefix else ''}"
            configuration.write_text(_nginx(tmp_path, port=port, target=target))
            command = [nginx, "-p", str(tmp_path), "-c", str(configuration), "-e", str(tmp_path / "nginx.log")]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            running.callback(process.wait, PATIENCE)
            running.callback(process.terminate)
            url = f"http://127.0.0.1:{port}/api/"
            eventually(lambda: accepts_messages(f"{url}health"))
            return url

        yield start


def _nginx(place: Path, *, port: int, target: str) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {place}/{kind};" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""  # a worker of another user could not enter the directory
    return f"""
        daemon off;
        pid {place}/nginx.pid;
        {user}
        events {{}}
        http {{
          access_log off;
          {temporary}
          server {{
            listen 127.0.0.1:{port};
            location /api/ {{
              proxy_pass {target};
              proxy_http_version 1.1;
              proxy_buffering off;
            }}
          }}
        }}
    """


@dataclass(frozen=True, kw_only=True)
class Person:
    """A user who talks with the gateway at a URL."""

    url: str
    token: str | None = None
    #: Whether the answer is read as an event stream.
    streams: bool = False
    user: str = "ana"
    channel: str = "kitchen"
    #: The certificate that the URL's server has signed itself.
    certificate: Path | None = None

    def client(self) -> httpx2.Client:
        """Return an HTTP client that authenticates."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx2.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False, verify=self._tls()
        )

    def is_answered(self) -> bool:
        """Return whether a healthy gateway answers at the URL."""
        return accepts_messages(f"{self.url}health", tls=self._tls())

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate) if self.certificate else certificates()

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        with self.client() as client:
            return client.get(path).raise_for_status().json()

    def say(self, content: str) -> str:
        """Send a message, and return the answer."""
        if self.streams:
            return self._streamed(content)
        with self.client() as client:
            answer = client.post("message", json=self.body(content)).raise_for_status().json()
        assert answer["channelId"] == self.channel
        assert answer["userId"] == self.user
        return answer["reply"]

    def body(self, content: str) -> dict[str, str]:
        """Return the request body of a message."""
        return {"content": content, "channelId": self.channel, "userId": self.user}

    def events(self, content: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Send a message, and yield the events of its turn."""
        headers = {"Accept": "text/event-stream"}
        with (
            self.client() as client,
            client.stream("POST", "message", json=self.body(content), headers=headers) as response,
        ):
            response.raise_for_status()
            event = ""
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                event = value if name == "event" else event
                if name == "data":
                    yield event, json.loads(value)

    def _streamed(self, content: str) -> str:
        events = list(self.events(content))
        assert events[0][0] == "turn.accepted"
        assert events[-1][0] == "turn.completed", events[-1]
        text = "".join(data["text"] for name, data in events if name == "message.delta")
        assert text == events[-1][1]["reply"]
        return text


@pytest.fixture
def person() -> type[Person]:
    """The class, for tests that cannot import from here."""
    return Person


@pytest.fixture(name="eventually")
def _eventually() -> Callable[[Callable[[], Any]], Any]:
    return eventually
