"""``make audit``: known vulnerabilities of the locked packages, looked up in a database on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@contextmanager
def database(vulnerable: str) -> Generator[str]:
    """Serve a database that knows one vulnerable package, and return its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = query["package"]["name"]
            affected = [
                {"package": query["package"], "ranges": [{"type": "ECOSYSTEM", "events": [{"fixed": "99"}]}]}
            ]
            fault = {
                "id": "PYSEC-2026-1",
                "summary": "Bad.",
                "published": "2026-11-01T00:00:00Z",
                "affected": affected,
            }
            answer = json.dumps({"vulns": [fault]} if name == vulnerable else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query"
        finally:
            server.shutdown()
            thread.join()


def audit(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/audit.py"), "--osv-url", url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_vulnerable_package_fails_the_audit() -> None:
    with database("jinja2") as url:
        done = audit(url)

    assert done.returncode == 1, done.stderr
    assert "jinja2 3." in done.stdout
    assert "PYSEC-2026-1, fixed in 99" in done.stdout
    assert_every_package_was_looked_up(done.stdout)


@pytest.mark.long
def test_audit_without_a_vulnerable_package_succeeds() -> None:
    with database("none") as url:
        done = audit(url)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("No known vulnerabilities.\n")
    assert_every_package_was_looked_up(done.stdout)


def assert_every_package_was_looked_up(output: str) -> None:
    counts = [int(line.split()[1]) for line in output.splitlines()[:2]]
    assert counts[0] > 70
    assert counts[1] > 200


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--require",), 1)])
def test_unreachable_database_is_reported(options: tuple[str, ...], status: int) -> None:
    with database("none") as url:
        pass

    done = audit(url, *options)

    assert (done.returncode, done.stdout) == (status, "")
    assert "SKIPPED: the OSV database cannot be reached" in done.stderr
