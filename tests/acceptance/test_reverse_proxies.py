"""The gateway behind real reverse proxies with TLS, by the configurations in ``deploy/proxies``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.parts import require
from tests.standins.servers import certify, free_port
from tests.waiting import PATIENCE

from torana.api.files import BODY_LIMIT as LIMIT_WITH_FILES
from torana.api.request_body import BODY_LIMIT
from torana.testing import Answer, ChatRequest, OpenAIStandIn

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway, Person

PROXIES = Path(__file__).parents[2] / "deploy" / "proxies"
TOKEN = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"


def nginx_command(place: Path, site: str) -> list[str]:
    """Write a configuration of nginx with this site, and return the command that serves it."""
    program = require("nginx", "nginx-light")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {place}/{kind};" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""  # another user's worker could not enter the directory
    file = place / "nginx.conf"
    file.write_text(
        f"daemon off; pid {place}/nginx.pid; {user} events {{}} http {{ access_log off; {temporary}\n{site}\n}}"
    )
    return [program, "-p", str(place), "-c", str(file), "-e", str(place / "nginx.log")]


def caddy_command(place: Path, site: str) -> list[str]:
    """Write a configuration of Caddy with this site, and return the command that serves it."""
    file = place / "Caddyfile"
    file.write_text(f"{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {place}/caddy\n}}\n{site}")
    return [require("caddy", "caddy"), "run", "--adapter", "caddyfile", "--config", str(file)]


def nginx(place: Path, port: int, gateway: int, *, api: bool) -> list[str]:
    site = (PROXIES / "nginx.conf").read_text()
    if api:
        location = re.compile(r"    location / .*?\n    }\n", re.DOTALL)
        site = location.sub(lambda _: (PROXIES / "nginx-api.conf").read_text(), site)
    site = site.replace("listen 443 ", f"listen 127.0.0.1:{port} ").replace(":18789", f":{gateway}")
    for name, file in (("fullchain", "certificate"), ("privkey", "key")):
        site = site.replace(f"/etc/letsencrypt/live/agent.example.org/{name}.pem", f"{place}/{file}.pem")
    return nginx_command(place, site)


def caddy(place: Path, port: int, gateway: int, *, api: bool) -> list[str]:
    site = (PROXIES / ("Caddyfile-api" if api else "Caddyfile")).read_text()
    tls = f"https://127.0.0.1:{port} {{\n\ttls {place}/certificate.pem {place}/key.pem\n"
    site = re.sub(r"^(?:agent\.)?example\.org {\n", lambda _: tls, site, flags=re.MULTILINE)
    return caddy_command(place, site.replace(":18789", f":{gateway}"))


def haproxy(place: Path, port: int, gateway: int, *, api: bool) -> list[str]:
    """Return the command of HAProxy, which passes every path on; all of its replicas are the same gateway."""
    pem = place / "both.pem"
    pem.write_text("".join((place / f"{file}.pem").read_text() for file in ("certificate", "key")))
    text = (PROXIES / "haproxy.cfg").read_text().replace("    bind :8080\n", "")
    text = text.replace(
        "# bind :8443 ssl crt /etc/haproxy/agent.example.org.pem", f"bind 127.0.0.1:{port} ssl crt {pem}"
    )
    file = place / "haproxy.cfg"
    file.write_text(re.sub(r" torana-[a-c]:18789", f" 127.0.0.1:{gateway}", text))
    return [require("haproxy", "haproxy"), "-db", "-f", str(file)]


#: The command of a proxy that publishes a gateway on a port, alone or under `/api/`.
PROXY_COMMANDS: dict[str, Callable[..., list[str]]] = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy}


@pytest.fixture(params=[(name, api) for name in PROXY_COMMANDS for api in (False, True)], ids=str)
def behind(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    person: type[Person],
    eventually: Callable[[Callable[[], Any]], Any],
) -> Iterator[Callable[[Gateway], Person]]:
    """Publishes a gateway by a proxy, and returns a user who talks to it through that proxy."""
    name, api = request.param
    place = tmp_path / "proxy"
    place.mkdir()
    asyncio.run(certify(place))
    with ExitStack() as running:

        def publish(gateway: Gateway) -> Person:
            port = free_port()
            command = PROXY_COMMANDS[name](place, port, gateway.port, api=api)
            environ = {"HOME": str(place), "PATH": os.environ["PATH"]}
            with (place / "stderr").open("wb") as stderr:
                process = subprocess.Popen(command, stderr=stderr, env=environ)
            running.callback(process.wait, PATIENCE)
            running.callback(process.terminate)
            url = f"https://127.0.0.1:{port}/{'api/' if api else ''}"
            ana = person(url=url, token=TOKEN, certificate=place / "certificate.pem")
            eventually(lambda: process.poll() is not None or ana.is_answered())
            assert process.poll() is None, (place / "stderr").read_text()
            return ana

        yield publish


def test_conversation_passes_the_proxy(
    new_gateway: Callable[..., Gateway], behind: Callable[[Gateway], Person]
) -> None:
    gateway = new_gateway(TORANA_GATEWAY_TOKEN=TOKEN, TORANA_TRUSTED_PROXIES="127.0.0.1")
    gateway.start()
    ana = behind(gateway)

    assert ana.say("what is 6 * 7") == "6 * 7 = 42"
    assert ana.get("health")["status"] == "ok"
    assert "/message" in ana.get("openapi.json")["paths"]


def test_events_pass_the_proxy_while_the_turn_runs(
    new_gateway: Callable[..., Gateway], behind: Callable[[Gateway], Person]
) -> None:
    accepted = threading.Event()
    came_in_time: list[bool] = []

    def answer(_request: ChatRequest) -> Answer:
        came_in_time.append(accepted.wait(10))
        return "Thank you for waiting."

    with OpenAIStandIn(reply=answer) as server:
        model = {"TORANA_MODEL": "openai-chat:stand-in", "TORANA_MODEL_BASE_URL": server.url}
        gateway = new_gateway(TORANA_GATEWAY_TOKEN=TOKEN, **model)
        gateway.start()
        for event, _ in behind(gateway).events("wait for me"):
            if event == "turn.accepted":
                accepted.set()
    assert came_in_time == [True]


def test_bodies_up_to_the_gateways_limit_pass_the_proxy(
    new_gateway: Callable[..., Gateway], behind: Callable[[Gateway], Person]
) -> None:
    gateway = new_gateway(TORANA_GATEWAY_TOKEN=TOKEN)
    gateway.start()
    ana = behind(gateway)
    headers = {"Content-Type": "application/json"}
    text = json.dumps(ana.body("what is 6 * 7")).encode()

    with ana.client() as client:
        largest = client.post("message", content=text.ljust(BODY_LIMIT), headers=headers)
        assert largest.json()["reply"] == "6 * 7 = 42"
        with_files = client.post("v1/messages", content=text.ljust(LIMIT_WITH_FILES), headers=headers)
        assert with_files.json()["reply"] == "6 * 7 = 42"
        # Caddy may cut off the body of a response that comes before the end of the request.
        with client.stream("POST", "message", content=text.ljust(2 * BODY_LIMIT), headers=headers) as larger:
            assert larger.status_code == 413
