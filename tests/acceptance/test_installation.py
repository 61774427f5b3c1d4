"""The wheel is installed by each installer in an empty environment, as the documentation shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torana import __version__

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway, Person

ROOT = Path(__file__).parents[2]

#: Seconds for the download and installation of about 80 packages.
PATIENCE = 540.0


def python(version: str) -> str:
    """Return the path of an interpreter of this version; skip the test without one."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return getattr(sys, "_base_executable", sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for found in (*sorted(pyenv.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")):
        if (
            found
            and subprocess.run([found, "-c", "import ensurepip"], check=False, capture_output=True).returncode
            == 0
        ):
            return str(found)
    pytest.skip(f"Python {version} is missing")


def run(*command: str | Path, home: Path, code: int = 0, **settings: str) -> str:
    """Run a command of the environment of the tests, which sees only these settings; return its output."""
    tools = Path(sys.executable).parent
    kept = {
        name: value for name, value in os.environ.items() if name.endswith(("_CERT", "_CERT_FILE", "_proxy"))
    }
    environ = {
        "HOME": str(home),
        "PATH": f"{tools}:/usr/bin:/bin",
        "PIPX_BIN_DIR": str(home / "bin"),
        "PIPX_HOME": str(home / "pipx"),
        "PIP_NO_COMPILE": "1",  # the first start compiles only what it imports
        "PIP_CACHE_DIR": str(home.parent.parent / "downloads" / "pip"),
        "UV_CACHE_DIR": str(home.parent.parent / "downloads" / "uv"),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_TOOL_BIN_DIR": str(home / "bin"),
        "UV_TOOL_DIR": str(home / "uv"),
    }
    done = subprocess.run(
        [*map(str, command)],
        cwd=home,
        env=kept | environ | settings,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def install_by_pip(wheel: Path, python: str, constraints: Path, home: Path) -> None:
    run(python, "-m", "venv", home / "venv", home=home)
    run(home / "venv/bin/pip", "install", "-c", constraints, wheel, home=home)
    (home / "bin").symlink_to(home / "venv/bin")


def install_by_uv(wheel: Path, python: str, constraints: Path, home: Path) -> None:
    run("uv", "tool", "install", "--python", python, "--constraints", constraints, wheel, home=home)


def install_by_pipx(wheel: Path, python: str, constraints: Path, home: Path) -> None:
    run("pipx", "install", "--python", python, f"--pip-args=-c {constraints}", wheel, home=home)


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions without their hashes, which a wheel on disk would need, too."""
    file = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    locked = re.findall(r"^(\S.*?) \\$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    file.write_text("\n".join(locked))
    return file


@pytest.mark.skipif(os.environ.get("TORANA_FULL_INSTALL") != "1", reason="TORANA_FULL_INSTALL=1 is not set")
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(
    ("install", "cure", "version"),
    [
        (install_by_pip, "-m pip install", "3.11"),
        (install_by_uv, "uv tool install --force", "3.13"),
        (install_by_pipx, "pipx install --force", "3.13"),
    ],
)
def test_installed_wheel_answers_a_message(
    wheel: Path,
    constraints: Path,
    tmp_path: Path,
    new_gateway: Callable[..., Gateway],
    person: type[Person],
    install: Callable[[Path, str, Path, Path], None],
    cure: str,
    version: str,
) -> None:
    place = tmp_path / "installed"
    place.mkdir()
    install(wheel, python(version), constraints, place)

    assert run(place / "bin/torana", "--version", home=place).strip() == __version__
    traced = {"TORANA_TRACE_ENDPOINT": "http://127.0.0.1:4318"}
    fault = run(place / "bin/torana", "config", "check", home=place, code=2, **traced)
    assert f"{cure} 'torana[otel] @ {wheel.as_uri()}'" in fault
    gateway = new_gateway(place / "bin")
    gateway.start()
    assert person(url=gateway.url).say("what is 6 * 7") == "6 * 7 = 42"
    assert gateway.stop() == 0
