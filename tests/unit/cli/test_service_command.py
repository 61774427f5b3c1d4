"""``torana service`` on a machine whose init system must not be used."""

from __future__ import annotations

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


def test_printed_units_have_the_settings_of_this_folder(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    monkeypatch.setenv("TORANA_PORT", "18790")
    (place / "torana.toml").write_text("drain = 90\n")

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
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, units = place / "bin", place / "config" / "systemd" / "user"
    programs.mkdir()
    units.mkdir(parents=True)
    (programs / "journalctl").write_text('#!/bin/sh\necho "$@" > called\nexit 3\n')
    (programs / "journalctl").chmod(0o755)
    (units / "torana.service").write_text(f"# {MARKER}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    monkeypatch.setenv("PATH", str(programs), prepend=":")

    assert command("service", "logs", "-n", "5", "--follow") == (3, "", "")
    called = (place / "called").read_text()
    assert called == "--user-unit=torana.service --no-pager --lines=5 --follow\n"


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
