"""``torana service`` on a machine whose init system must not be used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torana.cli.init_systems import detection
from torana.cli.init_systems.base import MARKER
from torana.store.engine.lock import DataDirLock

Command = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="the texts are those of systemd")


@pytest.fixture(autouse=True)
def _no_systemd(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "BOOTED", place / "none")


@pytest.fixture
def installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the init system's programs beside an installed service."""
    programs, units = place / "bin", place / "config" / "systemd" / "user"
    programs.mkdir()
    units.mkdir(parents=True)
    (units / "torana.service").write_text(f"# {MARKER}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return programs


def add_program(programs: Path, name: str, script: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)


def test_printed_units_have_the_settings_of_this_folder(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    monkeypatch.setenv("TORANA_PORT", "18790")
    (place / "torana.toml").write_text("drain = 80\ndrain_delay = 10\n")

    code, out, err = command("service", "install", "--print", "--keep", "3", "--config", "torana.toml")

    assert code == 0
    assert f"# {place}/config/systemd/user/torana.service\n" in out
    assert f"WorkingDirectory={place}\n" in out
    options = f"--data-dir {place}/data --config {place}/torana.toml"
    assert f" -P -m torana serve {options}\n" in out
    assert f" -P -m torana backup {options} --to {place}/data-backups --keep 3\n" in out
    assert "TimeoutStopSec=120\n" in out
    assert err == "warning: the service does not get TORANA_PORT of this shell; write them into .env\n"
    assert not (place / "config").exists()


def test_units_are_printed_as_json(command: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    files = json.loads(command("service", "install", "--print", "--json")[1])
    assert sorted(Path(path).name for path in files) == [
        "torana-backup.service",
        "torana-backup.timer",
        "torana.service",
    ]
    assert MARKER in files[f"{place}/config/systemd/user/torana.service"]


def test_service_without_backups_has_one_unit(command: Command) -> None:
    out = command("service", "install", "--print", "--no-backups")[1]
    assert "torana.service\n" in out
    assert "torana-backup" not in out


def test_invalid_settings_are_refused_before_the_service_is_installed(command: Command, place: Path) -> None:
    (place / "torana.toml").write_text('model = "nowhere:gpt"\n')
    code, out, err = command("service", "install", "--print")
    assert (code, out) == (2, "")
    assert "nowhere" in err


@pytest.mark.parametrize("name", ["install", "uninstall"])
def test_change_is_refused_without_an_init_system(command: Command, name: str) -> None:
    code, out, err = command("service", name)
    assert (code, out) == (1, "")
    assert err.startswith("this machine runs neither systemd nor launchd; run `torana serve`")


def test_service_beside_a_running_gateway_is_refused(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "BOOTED", place)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(place / "no-programs"))
    (place / "data").mkdir()
    with DataDirLock(data_dir=place / "data", address="http://127.0.0.1:9"):
        outcome = command("service", "install")
    line = "a gateway runs already at http://127.0.0.1:9; stop it, and run this again\n"
    assert outcome == (1, "", line)
    assert not (place / "none").exists()


@pytest.mark.parametrize("name", ["status", "logs"])
def test_missing_service_is_reported(command: Command, name: str) -> None:
    line = "no service is installed; `torana service install` installs it\n"
    assert command("service", name) == (1, "", line)


def test_logs_of_an_installed_service_come_from_the_journal(
    command: Command, place: Path, installed: Path
) -> None:
    add_program(installed, "journalctl", 'echo "$@" > called; exit 3')
    assert command("service", "logs", "-n", "5", "--follow") == (3, "", "")
    called = (place / "called").read_text()
    assert called == "--user-unit=torana.service --no-pager --lines=5 --follow\n"


def test_state_and_log_of_the_service_are_printed_as_json(command: Command, installed: Path) -> None:
    add_program(installed, "systemctl", "echo stopped; exit 3")
    add_program(installed, "journalctl", "echo one; echo two")
    code, out, err = command("service", "status", "--json")
    assert (code, err) == (3, "")
    assert json.loads(out) == {"running": False, "exitCode": 3, "lines": ["stopped"]}
    code, out, err = command("service", "logs", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"items": ["one", "two"]}
    assert "omit --follow" in command("service", "logs", "--json", "--follow")[2]


def test_change_of_the_service_is_printed_as_json(
    command: Command, place: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("systemctl", "loginctl"):
        add_program(installed, name, f"echo noise of {name}")
    monkeypatch.setattr(detection, "BOOTED", place)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    unit = f"{place}/config/systemd/user/torana.service"
    code, out, err = command("service", "install", "--no-backups", "--json")
    assert (code, json.loads(out)) == (0, {"written": [unit]}), err
    code, out, err = command("service", "uninstall", "--json")
    assert (code, json.loads(out)) == (0, {"deleted": [unit]}), err


@pytest.mark.parametrize(
    ("arguments", "prefix", "reason"),
    [
        (("--backup-to", "/home/ana/backups"), "/opt", "cannot write /home/ana/backups; name another"),
        (
            (),
            "/home/ana/.pyenv",
            "cannot read /home/ana/.pyenv; install Torana and its Python outside of /home",
        ),
    ],
)
def test_system_service_uses_no_home_directory(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], prefix: str, reason: str
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/torana/bin/python")
    monkeypatch.setattr(sys, "base_prefix", prefix)
    code, out, err = command("service", "install", "--print", "--system", *arguments)
    assert (code, out) == (1, "")
    assert reason in err


@pytest.mark.parametrize("option", ["--config", "--data-dir"])
def test_system_service_has_places_of_its_own(command: Command, option: str) -> None:
    code, out, err = command("service", "install", "--print", "--system", option, "here")
    assert (code, out) == (1, "")
    assert err.startswith("with --system, the settings are in /etc/torana and the data in /var/lib/torana;")
