"""A Python that is too old is refused in one clear line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: An interpreter that calls itself Python 3.9, and cannot do more than tell it.
OLD = f"""\
#!{sys.executable} -I
import sys
sys.version_info = (3, 9, 2)
assert sys.argv[1] == "-c"
exec(sys.argv[2])
"""


@pytest.mark.parametrize("target", ["run", "setup"])
@pytest.mark.parametrize("interpreter", ["old", "missing"])
def test_make_names_the_needed_python(tmp_path: Path, target: str, interpreter: str) -> None:
    for name in ("Makefile", "pyproject.toml", *(file.name for file in ROOT.glob("requirements*.lock"))):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "old").write_text(OLD)
    (tmp_path / "old").chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={tmp_path / interpreter}", target],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == "Torana needs Python 3.11 or newer; name it with: make PYTHON=python3.12 ...\n"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_pip_names_the_needed_python(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    options = ["--no-index", "--no-deps", "--only-binary=:all:", "--python-version", "3.9"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(wheel)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Package 'torana' requires a different Python: 3.9.0 not in '>=3.11'" in done.stderr
    assert not target.exists()
