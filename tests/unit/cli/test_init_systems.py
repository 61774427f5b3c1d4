"""The files of a service, read by the programs of systemd and by the parser of property lists."""

from __future__ import annotations

import os
import plistlib
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.parts import require

from torana.cli.init_systems import detection
from torana.cli.init_systems.base import MARKER, ServiceDefinition
from torana.cli.init_systems.detection import check_permitted, find_init_system
from torana.cli.init_systems.installation import ServiceInstaller, run_command
from torana.cli.init_systems.launchd import Launchd
from torana.cli.init_systems.systemd import Systemd
from torana.errors import OperatorError

#: The exposure of a unit by `systemd-analyze security`, in tenths: from 0 (isolated) to 100.
SYSTEM_EXPOSURE, USER_EXPOSURE = 31, 75


@pytest.fixture
def service(tmp_path: Path) -> ServiceDefinition:
    """A service whose paths contain characters with a meaning in units."""
    odd = tmp_path / 'da ta "%n" $HOME é'
    odd.mkdir()
    return ServiceDefinition(
        torana=(sys.executable, "-P", "-m", "torana"),
        options=("--data-dir", str(odd)),
        directory=tmp_path,
        stop_seconds=60,
        backups=tmp_path / "back ups",
        keep=7,
    )


class Runner:
    """Records commands; those that start with ``failing`` fail."""

    def __init__(self, *, failing: str = "-") -> None:
        self.commands: list[str] = []
        self._failing = failing

    def __call__(self, command: Sequence[str]) -> int:
        self.commands.append(" ".join(command))
        return int(self.commands[-1].startswith(self._failing))


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [require("systemd-analyze", "systemd"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def write_units(init_system: Systemd, service: ServiceDefinition, place: Path) -> list[Path]:
    place.mkdir()
    for path, text in init_system.files(service).items():
        (place / path.name).write_text(text)
    return sorted(path for path in place.iterdir() if path.suffix in (".service", ".timer"))


@pytest.mark.parametrize(
    ("unit_dir", "exposure"), [(None, SYSTEM_EXPOSURE), (Path("/home/ana/.config/systemd/user"), USER_EXPOSURE)]
)
def test_systemd_accepts_the_units(
    service: ServiceDefinition, tmp_path: Path, unit_dir: Path | None, exposure: int
) -> None:
    units = write_units(Systemd(unit_dir=unit_dir), service, tmp_path / "units")

    verified = analyze("verify", "--man=no", *units)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    assert [unit.name for unit in units] == ["torana-backup.service", "torana-backup.timer", "torana.service"]
    for unit in (units[0], units[2]):
        rated = analyze("security", "--offline=true", f"--threshold={exposure}", unit)
        assert rated.returncode == 0, rated.stdout


def test_units_leave_proc_and_namespaces_to_the_sandbox_of_scripts(service: ServiceDefinition) -> None:
    # Decision 0039: the kernel refuses a new /proc beside a covered one.
    units = "".join(Systemd(unit_dir=None).files(service).values())
    excluded = r"^(ProtectKernelTunables|ProtectKernelLogs|ProcSubset|ProtectHostname|RestrictNamespaces)="
    assert re.findall(excluded, units, re.MULTILINE) == []


def test_systemd_notices_a_missing_program(service: ServiceDefinition, tmp_path: Path) -> None:
    missing = replace(service, torana=(str(tmp_path / "a b" / "python"),))
    units = write_units(Systemd(unit_dir=None), missing, tmp_path / "units")

    assert f"Command {tmp_path}/a b/python is not executable" in analyze("verify", "--man=no", *units).stderr


def test_user_and_directories_of_the_system_service_are_created(
    service: ServiceDefinition, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for path, text in Systemd(unit_dir=None).files(service).items():
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.relative_to("/")).write_text(text)
    if os.geteuid() != 0:
        pytest.skip("only root may give files to another user")

    for program, arguments in (("systemd-sysusers", []), ("systemd-tmpfiles", ["--create"])):
        command = [require(program, "systemd"), f"--root={root}", *arguments, "torana.conf"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    assert re.search(r"^torana:.*:/var/lib/torana:", (root / "etc/passwd").read_text(), re.MULTILINE)
    assert (root / "etc/torana/torana.toml").read_text() == 'data_dir = "/var/lib/torana"\n'
    modes = {path: (root / path).stat().st_mode & 0o777 for path in ("etc/torana", "var/lib/torana")}
    assert modes == {"etc/torana": 0o750, "var/lib/torana": 0o700}
    assert service.backups is not None
    assert (root / service.backups.relative_to("/")).stat().st_mode & 0o777 == 0o700


def test_line_end_in_a_path_is_refused(service: ServiceDefinition) -> None:
    injected = replace(service, directory=Path("/srv/a\nExecStartPre=/bin/evil"))
    with pytest.raises(OperatorError, match="contains a control character"):
        Systemd(unit_dir=None).files(injected)


def test_agents_of_launchd_start_the_gateway_and_a_daily_backup(service: ServiceDefinition) -> None:
    launchd = Launchd(library=Path("/Users/ana/Library"), uid=501)
    files = {path.name: plistlib.loads(text.encode()) for path, text in launchd.files(service).items()}
    gateway, backup = files["torana.gateway.plist"], files["torana.backup.plist"]

    assert gateway["ProgramArguments"] == [*service.torana, "serve", *service.options]
    assert (gateway["RunAtLoad"], gateway["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert (gateway["WorkingDirectory"], gateway["Umask"]) == (str(service.directory), 0o077)
    assert backup["ProgramArguments"][-4:] == ["--to", str(service.backups), "--keep", "7"]
    assert backup["StartCalendarInterval"] == {"Hour": 3, "Minute": 30}
    assert launchd.start_commands(service)[0] == (
        "launchctl",
        "bootstrap",
        "gui/501",
        "/Users/ana/Library/LaunchAgents/torana.gateway.plist",
    )
    assert launchd.status_command() == ("launchctl", "print", "gui/501/torana.gateway")
    assert launchd.logs_command(lines=5, follow=True)[:4] == ("tail", "-n", "5", "-f")


def test_install_starts_the_service_and_uninstall_deletes_it(
    service: ServiceDefinition, tmp_path: Path
) -> None:
    units, runner, lines = tmp_path / "units", Runner(), list[str]()
    installer = ServiceInstaller(init_system=Systemd(unit_dir=units), run=runner, report=lines.append)

    installer.install(service)
    assert runner.commands == [
        "systemctl --user daemon-reload",
        "systemctl --user enable torana.service torana-backup.timer",
        "systemctl --user restart torana.service torana-backup.timer",
        "loginctl enable-linger",
    ]
    assert lines == [
        f"wrote {units / name}" for name in ("torana.service", "torana-backup.service", "torana-backup.timer")
    ]

    runner.commands.clear()
    installer.uninstall()
    assert list(units.iterdir()) == []
    assert runner.commands == [
        "systemctl --user disable --now torana.service torana-backup.timer",
        "systemctl --user daemon-reload",
    ]
    with pytest.raises(OperatorError, match="no service is installed"):
        installer.uninstall()


def test_second_install_replaces_the_first(service: ServiceDefinition, tmp_path: Path) -> None:
    library, runner = tmp_path / "Library", Runner()
    installer = ServiceInstaller(
        init_system=Launchd(library=library, uid=501), run=runner, report=lambda _: None
    )
    installer.install(service)
    runner.commands.clear()

    installer.install(replace(service, backups=None))
    agents = library / "LaunchAgents"
    assert runner.commands == [
        "launchctl bootout gui/501/torana.gateway",
        "launchctl bootout gui/501/torana.backup",
        f"launchctl bootstrap gui/501 {agents}/torana.gateway.plist",
    ]
    assert [path.name for path in agents.iterdir()] == ["torana.gateway.plist"]


def test_unit_of_others_is_not_replaced(service: ServiceDefinition, tmp_path: Path) -> None:
    mine = tmp_path / "torana-backup.service"
    mine.write_text("[Unit]\nDescription=mine\n")
    runner = Runner()
    installer = ServiceInstaller(init_system=Systemd(unit_dir=tmp_path), run=runner, report=lambda _: None)

    for change in (lambda: installer.install(service), installer.uninstall):
        with pytest.raises(OperatorError, match=re.escape(f"{mine} was not written by Torana")):
            change()
    assert mine.read_text() == "[Unit]\nDescription=mine\n"
    assert not (tmp_path / "torana.service").exists()
    assert runner.commands == []


def test_failed_command_is_reported_with_the_next_step(service: ServiceDefinition, tmp_path: Path) -> None:
    systemd = Systemd(unit_dir=tmp_path / "units")
    failing = ServiceInstaller(init_system=systemd, run=Runner(failing="systemctl --user enable"), report=print)
    with pytest.raises(OperatorError, match=r"`systemctl --user enable .*` ended with exit code 1; correct"):
        failing.install(service)

    ServiceInstaller(init_system=systemd, run=Runner(), report=print).install(service)
    assert MARKER in (tmp_path / "units/torana.service").read_text()


def test_missing_linger_is_a_warning(service: ServiceDefinition, tmp_path: Path) -> None:
    lines = list[str]()
    systemd = Systemd(unit_dir=tmp_path)
    ServiceInstaller(init_system=systemd, run=Runner(failing="loginctl"), report=lines.append).install(service)
    assert lines[-1].startswith("warning: the service stops when you log out")


def test_missing_program_is_reported() -> None:
    with pytest.raises(OperatorError, match="torana-no-such-program is missing"):
        run_command(("torana-no-such-program",))


@pytest.mark.parametrize(
    ("system", "uid", "booted", "reason"),
    [
        (False, 1000, False, "neither systemd nor launchd"),
        (True, 1000, True, "--system needs root"),
        (False, 0, True, "must not run as root"),
    ],
)
def test_service_is_refused_where_it_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: bool, uid: int, booted: bool, reason: str
) -> None:
    monkeypatch.setattr(detection, "BOOTED", tmp_path if booted else tmp_path / "none")
    with pytest.raises(OperatorError, match=reason):
        check_permitted(system=system, uid=uid, platform="linux")


def test_init_system_is_found_by_the_platform() -> None:
    check_permitted(system=False, uid=501, platform="darwin")
    assert isinstance(find_init_system(system=False, platform="darwin"), Launchd)
    assert isinstance(find_init_system(system=True, platform="linux"), Systemd)
    with pytest.raises(OperatorError, match="--system needs systemd"):
        find_init_system(system=True, platform="darwin")
