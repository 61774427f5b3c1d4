"""The commands of the units that ``torana service install`` writes, run as systemd runs them."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.standins.servers import free_port

if TYPE_CHECKING:
    from tests.acceptance.conftest import Person

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="the units are for Linux")


class Unit:
    """A unit, whose command runs in its directory with the few variables that systemd sets."""

    def __init__(self, text: str, *, home: Path) -> None:
        self._text = text
        self._environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}

    def start(self) -> subprocess.Popen[str]:
        # Without specifiers and variables, a line of a unit is split as by a shell.
        line = self._value("ExecStart").replace("%%", "%").replace("$$", "$")
        return subprocess.Popen(
            shlex.split(line),
            cwd=self._value("WorkingDirectory").replace("%%", "%"),
            env=self._environ,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _value(self, name: str) -> str:
        (value,) = re.findall(rf"^{name}=(.*)$", self._text, re.MULTILINE)
        return value


@pytest.fixture
def units(installed: Path, tmp_path: Path) -> dict[str, Unit]:
    """The units of a service in a folder with an unusual name and a port of its own."""
    folder = tmp_path / 'my "100 %" $agent'
    folder.mkdir()
    (folder / ".env").write_text(f"TORANA_PORT={free_port()}\n")
    printed = subprocess.run(
        [installed / "torana", "service", "install", "--print", "--data-dir", "my data"],
        cwd=folder,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert printed.stderr == ""
    parts = re.split(r"^# (/.*)\n", printed.stdout, flags=re.MULTILINE)[1:]
    return {
        Path(path).name: Unit(text, home=tmp_path) for path, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_gateway_of_the_unit_answers_and_stops(units: dict[str, Unit], person: type[Person]) -> None:
    with units["torana.service"].start() as gateway:
        try:
            assert gateway.stdout is not None
            (url,) = re.findall(r"listens on (\S+)", gateway.stdout.readline())
            assert person(url=f"{url}/").say("what is 6 * 7") == "6 * 7 = 42"
            gateway.send_signal(signal.SIGTERM)  # as `systemctl stop`
            assert gateway.wait(60) == 0
        finally:
            gateway.kill()


def test_backup_of_the_unit_saves_the_data_of_the_running_gateway(units: dict[str, Unit]) -> None:
    with units["torana.service"].start() as gateway:
        try:
            assert gateway.stdout is not None
            assert "listens on" in gateway.stdout.readline()
            with units["torana-backup.service"].start() as backup:
                printed, _ = backup.communicate(timeout=60)
            assert backup.returncode == 0
        finally:
            gateway.kill()
    file = Path(printed.rpartition(" (")[0])
    assert file.is_file()
    assert file.parent.name == "my data-backups"
