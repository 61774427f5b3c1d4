"""``torana doctor``: a healthy gateway, and each failure with its cure."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import threading
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.redis_server import RedisProcess

from torana import __version__
from torana.cli.gateway import listen
from torana.store.engine.lock import DataDirLock
from torana.store.engine.migrate import migrate
from torana.testing import OpenAIStandIn

#: A signing key for webhooks.
KEY = b64encode(b"k" * 32).decode()

Command = Callable[..., tuple[int, str, str]]
AddSkill = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def port(place: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port for the gateway."""
    with listen("127.0.0.1", 0) as listener:
        free = listener.getsockname()[1]
    monkeypatch.setenv("TORANA_PORT", str(free))
    return free


@pytest.fixture
def findings(command: Command) -> Callable[[], dict[str, str]]:
    """Runs the doctor and returns the failed checks."""

    def run() -> dict[str, str]:
        code, out, err = command("doctor", "--json")
        found = {item["check"]: item["detail"] for item in json.loads(out) if not item["ok"]}
        assert (code, err) == (1 if found else 0, "")
        return found

    return run


def test_all_checks_pass_before_the_first_start(command: Command, place: Path, port: int) -> None:
    code, out, err = command("doctor")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["ok", check]
        for check in (
            *("settings", "data", "disk", "gateway", "database", "skills"),
            *("sandbox", "tools", "permissions", "connectors", "mcp", "model"),
        )
    ]
    assert f"{place / 'data'} will be created at the first start" in out
    assert f"not running; 127.0.0.1:{port} is free" in out
    assert not (place / "data").exists()


def test_disk_check_reports_sizes_and_remains(command: Command, place: Path) -> None:
    (place / "data").mkdir()
    migrate(place / "data" / "torana.db")
    (place / "data" / "torana.db.before-0002").touch()
    (place / "data" / "skills.replaced-20260101T000000Z").mkdir()

    code, out, _ = command("doctor")

    (line,) = (line for line in out.splitlines() if line.split()[1] == "disk")
    assert code == 0
    assert re.search(r" free; the database has \d+\.\d kB; delete these remains ", line)
    assert line.endswith(": skills.replaced-20260101T000000Z, torana.db.before-0002")


def test_disk_without_room_for_a_copy_of_the_database_fails(
    findings: Callable[[], dict[str, str]], place: Path
) -> None:
    (place / "data").mkdir()
    migrate(place / "data" / "torana.db")
    with (place / "data" / "torana.db-wal").open("wb") as log:
        log.truncate(shutil.disk_usage(place).free)  # sparse: nothing is written

    assert findings()["disk"].endswith("free disk space: a backup or an upgrade needs room for a copy")


def test_intact_database_is_reported_with_its_revision(command: Command, place: Path) -> None:
    (place / "data").mkdir()
    migrate(place / "data" / "torana.db")
    code, out, _ = command("doctor")
    assert code == 0
    assert "intact, at revision " in out


def test_empty_database_is_reported(findings: Callable[[], dict[str, str]], place: Path) -> None:
    (place / "data").mkdir()
    (place / "data" / "torana.db").touch()
    found = findings()
    assert found.keys() == {"database"}
    assert found["database"].startswith(f"{place / 'data' / 'torana.db'} is empty: ")


def test_added_index_gives_a_warning(command: Command, place: Path) -> None:
    (place / "data").mkdir()
    migrate(place / "data" / "torana.db")
    with closing(sqlite3.connect(place / "data" / "torana.db")) as database, database:
        database.execute("CREATE INDEX quick ON turns (content)")
    code, out, _ = command("doctor")
    assert code == 0
    assert "warning: `torana restore` would refuse a backup of this database: the index 'quick' is added" in out


def test_damaged_database_is_reported(findings: Callable[[], dict[str, str]], place: Path) -> None:
    (place / "data").mkdir()
    (place / "data" / "torana.db").write_bytes(b"no database at all" * 100)
    found = findings()
    assert found.keys() == {"database"}
    assert "restore a backup with `torana restore`" in found["database"]


def test_database_of_a_newer_version_is_reported(findings: Callable[[], dict[str, str]], place: Path) -> None:
    (place / "data").mkdir()
    migrate(place / "data" / "torana.db")
    with closing(sqlite3.connect(place / "data" / "torana.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "a newer Torana wrote it" in findings()["database"]


def test_database_of_another_program_is_reported(findings: Callable[[], dict[str, str]], place: Path) -> None:
    (place / "data").mkdir()
    with closing(sqlite3.connect(place / "data" / "torana.db")) as database, database:
        database.execute("CREATE TABLE invoices (id)")
    assert findings() == {
        "database": f"{place / 'data' / 'torana.db'} is the database of another program; move the file away"
    }


def test_uncreatable_data_directory_is_reported(
    findings: Callable[[], dict[str, str]], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").touch()
    monkeypatch.setenv("TORANA_DATA_DIR", str(place / "file" / "data"))
    monkeypatch.setenv("TORANA_SKILLS_DIR", str(place / "skills"))
    assert findings() == {
        "data": f"TORANA_DATA_DIR: {place / 'file'} is not a writable directory; correct its "
        "permissions, or choose another with --data-dir"
    }


def test_invalid_data_directory_path_is_reported(
    findings: Callable[[], dict[str, str]], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = place / ("long" * 100)
    monkeypatch.setenv("TORANA_DATA_DIR", str(directory))
    found = findings()
    assert found["data"].startswith(f"{directory}: File name too long; fix ")
    assert found["database"].startswith(f"{directory / 'torana.db'}: File name too long; fix ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_data_directory_without_permission_is_reported(
    findings: Callable[[], dict[str, str]], place: Path
) -> None:
    (place / "data").mkdir(mode=0o500)
    assert findings()["data"].startswith(str(place / "data"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everywhere")
def test_data_directory_below_a_locked_directory_is_reported(
    findings: Callable[[], dict[str, str]], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "locked").mkdir(mode=0)
    monkeypatch.setenv("TORANA_DATA_DIR", str(place / "locked" / "data"))
    assert "Permission denied; correct its permissions" in findings()["data"]


def test_occupied_port_is_reported(findings: Callable[[], dict[str, str]], port: int) -> None:
    with listen("127.0.0.1", port) as listener, ThreadPoolExecutor() as threads:
        # The other program ends the connection: the doctor waits for an answer.
        threads.submit(lambda: listener.accept()[0].close())
        found = findings()
    assert found == {
        "gateway": f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --host or "
        "--port"
    }


def test_broken_skill_is_reported_with_its_error(
    findings: Callable[[], dict[str, str]], add_skill: AddSkill
) -> None:
    add_skill("bad", "---\nname: bad\n---\n")
    assert findings()["skills"].startswith("bad: SKILL.md has no description; add ")


SCRIPTED = """---
name: tries
description: Tries.
metadata: {torana: {scripts: [SKILL.md]}}
---
"""


def test_scripts_that_cannot_run_are_reported_with_a_cure(
    findings: Callable[[], dict[str, str]],
    command: Command,
    add_skill: AddSkill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torana.tools.sandbox.bubblewrap.PATH", str(tmp_path))
    assert "not needed: no skill has scripts. The program nice is missing" in command("doctor")[1]

    add_skill("tries", SCRIPTED)
    assert findings()["sandbox"] == (
        "the scripts of tries cannot run. The program nice is missing: apt install coreutils."
    )


def test_missing_tool_is_reported(
    findings: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_TOOLS", "nowhere_at_all:tool")
    assert "put it on PYTHONPATH" in findings()["tools"]


def test_incomplete_search_service_is_reported(
    findings: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_SEARCH", "brave")
    assert findings()["tools"] == (
        "TORANA_SEARCH: web_search is not available: brave needs a key: set TORANA_SEARCH_API_KEY"
    )


def test_own_tools_are_listed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORANA_TOOLS", "torana.tools.mcp.entries:slug")
    assert "ok    tools       slug\n" in command("doctor")[1]


@pytest.fixture
def connect(place: Path) -> Callable[..., None]:
    """Writes a settings file with these lines."""

    def write(*lines: str) -> None:
        (place / "torana.toml").write_text("\n".join(lines))

    return write


def test_valid_connectors_are_listed_without_network_calls(
    command: Command, connect: Callable[..., None], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", KEY)
    connect(
        "hooks_port = 1024",
        "[connectors.webhook]",
        'secrets = ["$HOOK_KEY"]',
        f'reply_url = "http://127.0.0.1:{port}"',  # no server listens there
        "[connectors.shop]",
        'kind = "webhook"',
        f'secrets = "{KEY}"',
        "[connectors.slack]",
        "enabled = false",
    )
    assert "ok    connectors  webhook, shop (webhook)\n" in command("doctor")[1]


def test_connector_errors_are_reported_without_secrets(
    findings: Callable[[], dict[str, str]], connect: Callable[..., None]
) -> None:
    connect("[connectors.webhook]", 'secrets = "hush-hush"', "[connectors.gull]", "x = 1", "[connectors.slack]")
    found = findings()
    assert found.keys() == {"connectors"}
    assert [line.split(": ")[:2] for line in found["connectors"].splitlines()] == [
        ["torana.toml:1", "connectors.webhook"],
        ["torana.toml:3", "connectors.gull"],
        ["torana.toml:5", "connectors.slack.bot_token"],
        ["torana.toml:5", "connectors.slack.app_token"],
    ]
    assert "hush" not in found["connectors"]


def test_unset_variable_of_a_connector_is_reported(
    findings: Callable[[], dict[str, str]], connect: Callable[..., None]
) -> None:
    connect("[connectors.webhook]", 'secrets = "$NOT_SET_ANYWHERE"')
    assert findings() == {
        "connectors": "torana.toml:2: connectors.webhook.secrets: the environment variable NOT_SET_ANYWHERE "
        "is not set; set it, or write it into .env"
    }


def test_webhook_connector_without_hooks_port_is_reported(
    findings: Callable[[], dict[str, str]], connect: Callable[..., None]
) -> None:
    connect("[connectors.webhook]", f'secrets = "{KEY}"')
    assert findings() == {
        "connectors": "torana.toml:1: connectors.webhook: its platform calls the gateway; set "
        "TORANA_HOOKS_PORT and restart the gateway"
    }


def test_responding_provider_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIStandIn() as server:
        monkeypatch.setenv("TORANA_MODEL", "openai-chat:some-model")
        monkeypatch.setenv("TORANA_MODEL_BASE_URL", server.url)
        code, out, _ = command("doctor")
        assert len(server.requests) == 1
    assert code == 0
    assert "some-model answered in " in out


def test_unreachable_provider_is_reported(
    findings: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setenv("TORANA_MODEL", "openai-chat:some-model")
    monkeypatch.setenv("TORANA_MODEL_BASE_URL", f"http://127.0.0.1:{port}/v1")
    assert findings() == {"model": f"connection refused to 127.0.0.1:{port}: is the server running there?"}


def test_missing_provider_key_is_reported(
    findings: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("TORANA_MODEL", "openai:gpt-5")
    assert findings() == {"model": "openai:gpt-5 needs a key: set OPENAI_API_KEY"}


@contextmanager
def _holder(data_dir: Path, body: bytes, others: Mapping[str, bytes] | None = None) -> Generator[str]:
    """A process that holds the data directory. It answers requests with one body, except for the others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = (others or {}).get(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            with DataDirLock(data_dir=data_dir, address=address):
                yield address
        finally:
            server.shutdown()
            thread.join()


def test_starting_gateway_is_reported(command: Command, place: Path) -> None:
    with _holder(place / "data", b'{"status": "starting"}') as address:
        code, out, _ = command("doctor")
    assert code == 0
    assert f"running at {address}, and still starting\n" in out


def test_gateway_of_another_version_is_reported(command: Command, place: Path) -> None:
    telegram = {"account": "telegram", "state": "active"}
    status = {"version": "0.0.9", "model": ["openai:gpt-5"], "connectors": [telegram]}
    others = {"/v1/status": json.dumps(status).encode(), "/v1/settings": b'{"items": []}'}
    with _holder(place / "data", b'{"status": "ok"}', others) as address:
        code, out, _ = command("doctor")
    assert code == 0
    indent = " " * 18
    assert (
        f"ok    gateway     running at {address}, version 0.0.9, with the data directory of this folder\n"
        f"{indent}model openai:gpt-5; connectors: telegram (active)\n"
        f"{indent}warning: it differs from this folder; a restart here would change:\n"
        f"{indent}version: 0.0.9 there, {__version__} installed here\n"
    ) in out


def test_lock_of_another_command_is_not_reported_as_a_gateway(command: Command, place: Path, port: int) -> None:
    with DataDirLock(data_dir=place / "data", address="torana restore"):
        code, out, _ = command("doctor")
    assert code == 0
    assert f"not running; 127.0.0.1:{port} is free" in out


def test_degraded_gateway_is_reported(findings: Callable[[], dict[str, str]], place: Path) -> None:
    with _holder(place / "data", b'{"status": "degraded"}') as address:
        found = findings()
    assert found == {"gateway": f"running at {address}, but degraded; its log shows the cause"}


def test_unresponsive_lock_holder_is_reported(
    findings: Callable[[], dict[str, str]], place: Path, port: int
) -> None:
    with DataDirLock(data_dir=place / "data", address=f"http://127.0.0.1:{port}"):
        found = findings()
    assert found["gateway"].startswith(f"http://127.0.0.1:{port} holds the data directory but does not respond")


def test_redis_without_replicas_is_named(
    findings: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_REDIS_URL", "redis://127.0.0.1:1/0")

    assert findings() == {
        "redis": "redis_url: only replicas use Redis; set replicas to true, or remove redis_url"
    }


def test_redis_is_checked(
    command: Command, monkeypatch: pytest.MonkeyPatch, redis: RedisProcess, postgres_url: str
) -> None:
    monkeypatch.setenv("TORANA_DATABASE_URL", postgres_url)
    monkeypatch.setenv("TORANA_REPLICAS", "true")
    monkeypatch.setenv("TORANA_REDIS_URL", redis.url)

    _, out, _ = command("doctor")

    assert re.search(rf"^ok    redis       Redis \S+ on 127.0.0.1:{redis.port}/0, writes in", out, re.MULTILINE)
