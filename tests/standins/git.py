"""Git repositories, and servers of them on loopback."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.parts import require


def git(folder: Path, *arguments: str) -> str:
    """Run git in a repository, without a user's settings."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{
            f"GIT_{who}_{what}": "test@example.com"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    done = subprocess.run(
        [require("git", "git"), *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def repository(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Create a repository with one commit of these files on the branch ``main``."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, files)
    return folder


def commit(folder: Path, files: Mapping[str, str | bytes]) -> str:
    """Write files, commit all files, and return the commit."""
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body.encode() if isinstance(body, str) else body)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message=x")
    return git(folder, "rev-parse", "HEAD")


class _Backend(BaseHTTPRequestHandler):
    """Pass requests to ``git http-backend``, or redirect them."""

    root: Path
    moved: str | None
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a request."""
        if self.moved is not None:
            self.send_response(301)
            self.send_header("Location", self.moved + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        done = subprocess.run(
            ["git", "http-backend"], env=environ, input=body, stdout=subprocess.PIPE, check=False
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in (fields | {"Content-Length": str(len(answer))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET  # noqa: N815 - the names are those of the library

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@contextmanager
def serving_git(root: Path, certificate: Path, *, moved: str | None = None) -> Generator[int]:
    """Serve the repositories below ``root`` over https, and yield the port. ``certificate`` holds its ``.pem``
    files.
    """
    handler = type("Backend", (_Backend,), {"root": root, "moved": moved})
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
