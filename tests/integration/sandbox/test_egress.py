"""A script with granted hosts reaches only them, through a proxy outside the sandbox."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.integration.sandbox.conftest import Gateway

#: Fetches through the proxy of the environment, as any program does.
FETCH = """
import json, sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print(type(error).__name__, error)
"""
TUNNEL = """
import os, socket, sys
host, port = sys.argv[1:]
with socket.create_connection(("127.0.0.1", 3128)) as line:
    line.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
    print(line.recv(1000).decode().splitlines()[0])
    line.sendall(b"GET /through HTTP/1.0\\r\\n\\r\\n")
    print(line.makefile("rb").read().decode().splitlines()[-1])
"""


@dataclass
class Web:
    """A server on this machine, and its requests."""

    port: int
    asked: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])


@pytest.fixture
def web() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.asked.append((self.path, self.headers["Host"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"page {self.path}".encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"got " + str(len(body)).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        seen = Web(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield seen
        server.shutdown()
        thread.join()


#: The server of these tests, under a name that the operator allows to be private.
HERE: dict[str, Any] = {"addresses": {"api.example.com": ["127.0.0.1"]}, "private": ["api.example.com"]}


def test_granted_host_is_reached_at_its_checked_address(gateway: Gateway, web: Web) -> None:
    gateway.write(FETCH, hosts=[f"api.example.com:{web.port}"])

    result = gateway.call(arguments=[f"http://api.example.com:{web.port}/a?b=c"], **HERE)

    assert result.text == "exit code 0\nstdout:\n200 page /a?b=c"
    assert web.asked == [("/a?b=c", f"api.example.com:{web.port}")]


def test_tunnel_to_a_granted_host_works(gateway: Gateway, web: Web) -> None:
    gateway.write(TUNNEL, hosts=[f"api.example.com:{web.port}"])

    result = gateway.call(arguments=["api.example.com", str(web.port)], **HERE)

    assert result.stdout == "HTTP/1.1 200 Connection established\npage /through"


def test_other_hosts_ports_and_addresses_are_refused_and_reported(gateway: Gateway, web: Web) -> None:
    gateway.write(FETCH, hosts=["api.example.com"])
    urls = [
        f"http://api.example.com:{web.port}/",
        f"http://127.0.0.1:{web.port}/",
        f"http://[::ffff:127.0.0.1]:{web.port}/",
        f"http://2130706433:{web.port}/",
        "http://169.254.169.254/latest/meta-data",
        "http://api.example.com.evil.example/",
        "http://user@api.example.com/",
    ]
    result = gateway.call(arguments=urls, **HERE)

    assert [line.split()[0] for line in result.stdout.splitlines()] == ["403"] * 6 + ["400"]
    assert "403 The operator has not granted 169.254.169.254:80 to this skill." in result.stdout
    assert "Not granted to it, and refused: 169.254.169.254:80." in result.text
    assert web.asked == []


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_granted_name_with_a_private_address_is_refused(gateway: Gateway, web: Web, address: str) -> None:
    host = f"inside.example.com:{web.port}"
    gateway.write(FETCH, hosts=[host])

    result = gateway.call(arguments=[f"http://{host}/"], addresses={"inside.example.com": [address]})

    assert result.stdout.startswith("502 inside.example.com cannot be reached: inside.example.com (")
    assert "is not on the public internet" in result.stdout
    assert web.asked == []


def test_granted_name_that_does_not_exist_is_reported(gateway: Gateway) -> None:
    gateway.write(FETCH, hosts=["none.example.com"])

    result = gateway.call(arguments=["http://none.example.com/"])

    assert result.stdout.startswith(
        "502 none.example.com cannot be reached: The host none.example.com has no address"
    )


def test_explicitly_granted_private_address_is_reached(gateway: Gateway, web: Web) -> None:
    gateway.write(FETCH, hosts=[f"127.0.0.1:{web.port}"])

    assert gateway.call(arguments=[f"http://127.0.0.1:{web.port}/x"]).stdout == "200 page /x"


def test_declared_but_ungranted_host_is_refused(gateway: Gateway, web: Web) -> None:
    gateway.write(FETCH, hosts=[f"127.0.0.1:{web.port}", "api.example.com"])

    result = gateway.call(
        arguments=[f"http://127.0.0.1:{web.port}/x"],
        approved={"hosts": ["api.example.com", "more.example.com"], "scripts": ["scripts/try.py"]},
    )

    assert result.stdout.startswith("403 ")
    assert web.asked == []


def test_proxy_is_the_only_network_access(gateway: Gateway, web: Web) -> None:
    gateway.write(
        f"""
        import os, socket
        print([name for _, name in socket.if_nameindex()], os.environ["https_proxy"])
        print(sorted(os.listdir("/run")))
        for place in (("127.0.0.1", {web.port}), ("93.184.215.14", 80)):
            try:
                socket.create_connection(place, 2)
            except OSError as error:
                print(error.strerror)
        """,
        hosts=["api.example.com"],
    )

    assert gateway.call().stdout.splitlines() == [
        "['lo'] http://127.0.0.1:3128",
        "['egress.sock', 'forward.py']",
        "Connection refused",
        "Network is unreachable",
    ]


def test_proxy_refuses_invalid_requests_and_too_many_connections(gateway: Gateway) -> None:
    gateway.write(
        """
        import json, socket
        answers = []
        heads = ["\\x16\\x03 garbage", "GET / HTTP/1.1", "GET ftp://a/ HTTP/1.1", "CONNECT a HTTP/1.1",
                 "CONNECT a:99999 HTTP/1.1", "x" * 40000]
        for sent in [head.encode() + b"\\r\\n\\r\\n" for head in heads]:
            with socket.create_connection(("127.0.0.1", 3128)) as line:
                try:
                    line.sendall(sent)
                    answers.append(line.recv(100).decode().split(" ")[1])
                except OSError:
                    answers.append("cut")
        lines = [socket.create_connection(("127.0.0.1", 3128)) for _ in range(40)]
        answers.append(lines[-1].recv(100).decode().split(" ")[1])
        print(json.dumps(answers))
        """,
        hosts=["api.example.com"],
    )
    *answers, flood = json.loads(gateway.call().stdout)

    assert answers[:3] == ["400"] * 3
    assert set(answers[3:]) <= {"400", "403", "cut"}
    assert flood == "503"


def test_large_bodies_are_passed_in_both_directions(gateway: Gateway, web: Web) -> None:
    gateway.write(
        f"""
        import urllib.request
        with urllib.request.urlopen("http://127.0.0.1:{web.port}/", data=bytes(3_000_000)) as answer:
            print(answer.read().decode())
        """,
        hosts=[f"127.0.0.1:{web.port}"],
    )

    assert gateway.call().stdout == "got 3000000"


def test_silent_host_is_stopped_with_the_script(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        gateway.write(FETCH, hosts=[place])

        result = gateway.call(arguments=[f"http://{place}/"], limits={"seconds": 2})

    assert result.first == "The script was stopped: it was still running after 2 seconds."
