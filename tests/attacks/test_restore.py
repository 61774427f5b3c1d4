"""Backups prepared by an attacker."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.attacks.conftest import GatewayProcess

NewGateway = Callable[..., GatewayProcess]

#: Makes the audit record lose every entry.
TRIGGER = "CREATE TRIGGER forget AFTER INSERT ON audit BEGIN DELETE FROM audit; END"


@pytest.fixture(params=["sqlite", "postgresql"])
def gateway(new_gateway: NewGateway, request: pytest.FixtureRequest) -> GatewayProcess:
    """A stopped gateway that has answered a message and has a backup ``good.zip`` in its home."""
    on_postgresql = request.param == "postgresql"
    gateway = (
        new_gateway(database_url=request.getfixturevalue("postgres_url")) if on_postgresql else new_gateway()
    )
    gateway.start()
    with gateway.client() as client:
        client.post("/message", json={"content": "what is 2+2", "channelId": "kept"}).raise_for_status()
    gateway.stop()
    done = gateway.run_command("backup", "good.zip")
    assert (done.returncode, done.stderr) == (0, "")
    return gateway


def prepared(
    gateway: GatewayProcess, sql: str = "", add: Callable[[zipfile.ZipFile], None] | None = None
) -> Path:
    """Return a copy of the backup whose database has executed ``sql``, with a matching digest."""
    database = gateway.home / "prepared.db"
    with zipfile.ZipFile(gateway.home / "good.zip") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    database.write_bytes(contents["torana.db"])
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(sql)
        connection.execute("VACUUM")
    contents["torana.db"] = database.read_bytes()
    manifest = json.loads(contents["manifest.json"])
    manifest["sha256"] = hashlib.sha256(contents["torana.db"]).hexdigest()
    contents["manifest.json"] = json.dumps(manifest).encode()
    target = gateway.home / "prepared.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
        if add is not None:
            add(archive)
    return target


def files(gateway: GatewayProcess) -> dict[Path, bytes]:
    """Return every file of the data directory except the lock."""
    found = (file for file in gateway.data_dir.rglob("*") if file.is_file() and file.name != "torana.lock")
    return {file: file.read_bytes() for file in found}


def test_prepared_backups_are_refused_without_changes(gateway: GatewayProcess) -> None:
    def bomb(archive: zipfile.ZipFile) -> None:
        with archive.open("workspaces/" + "0" * 32 + "/bomb", "w", force_zip64=True) as out:
            for _ in range(1500):
                out.write(bytes(1 << 20))

    def escape(archive: zipfile.ZipFile) -> None:
        archive.writestr("../escaped", "x")

    before = files(gateway)
    for sql, add, fault in [
        (TRIGGER, None, "the trigger 'forget' is added"),
        ("", bomb, "has 1,572,864,000 bytes, more than 536,870,912"),
        ("", escape, "'../escaped' is not a file of a backup"),
    ]:
        done = gateway.run_command("restore", str(prepared(gateway, sql, add)))

        assert (done.returncode, done.stdout) == (1, "")
        assert fault in done.stderr
        assert done.stderr.count("\n") == 1
        assert files(gateway) == before

    done = gateway.run_command("restore", str(prepared(gateway)))  # without an attack
    assert done.returncode == 0, done.stderr
    gateway.start()
    with gateway.client() as client:
        assert [one["channelId"] for one in client.get("/v1/sessions").json()["items"]] == ["kept"]
