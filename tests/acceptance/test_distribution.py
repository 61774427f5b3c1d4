"""``make dist``: the files of a release."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.parser import BytesParser
from pathlib import Path

import pytest

from torana import __version__

ROOT = Path(__file__).parents[2]

Checkout = Callable[[str], Path]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Commits the tracked files of the working tree in a new repository of this name."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    files = [name for name in listed.split("\0") if name and (ROOT / name).exists()]

    def copy(name: str) -> Path:
        place = tmp_path / name
        for file in files:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, place / file)
        run(["git", "init", "--quiet"], place)
        run(["git", "add", "--all"], place)
        author = ["-c", "user.name=Torana", "-c", "user.email=torana@example.org"]
        run(["git", *author, "commit", "--quiet", "--message", "Release"], place)
        return place

    return copy


def run(command: list[str], place: Path, *, umask: int = 0o022, **environ: str) -> None:
    dates = {"GIT_AUTHOR_DATE": "2026-11-01T12:00:00Z", "GIT_COMMITTER_DATE": "2026-11-01T12:00:00Z"}
    environ = {"PATH": os.environ["PATH"], "HOME": str(place), **dates, **environ}
    done = subprocess.run(
        command, cwd=place, env=environ, umask=umask, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def make_dist(place: Path, *, umask: int, zone: str) -> dict[str, str]:
    """Run ``make dist`` with this environment's tools, and return the SHA-256 of each file."""
    stamp = f"{sys.prefix}/.dev"
    run(["make", f"VENV={sys.prefix}", "--assume-old", stamp, "dist"], place, umask=umask, TZ=zone)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (place / "dist").iterdir()}


def test_two_builds_of_a_commit_are_equal(checkout: Checkout) -> None:
    place = checkout("first")

    first = make_dist(place, umask=0o022, zone="UTC")
    second = make_dist(checkout("a-second-one"), umask=0o077, zone="Asia/Tokyo")

    name = f"torana-{__version__}"
    assert first == second
    assert set(first) == {f"{name}-py3-none-any.whl", f"{name}.tar.gz", "sbom.cdx.json", "SHA256SUMS"}
    listed = dict(line.split()[::-1] for line in (place / "dist/SHA256SUMS").read_text().splitlines())
    assert listed == {name: digest for name, digest in first.items() if name != "SHA256SUMS"}
    lists_the_locked_packages(place / "dist/sbom.cdx.json")
    can_be_tested(place / f"dist/{name}.tar.gz")


def lists_the_locked_packages(file: Path) -> None:
    document = json.loads(file.read_text())
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {line.split()[0] for line in lock if "==" in line and not line.startswith(" ")}
    assert {f"{part['name']}=={part['version']}" for part in document["components"]} == locked
    root = document["metadata"]["component"]
    assert (root["name"], root["version"]) == ("torana", __version__)
    (direct,) = (part["dependsOn"] for part in document["dependencies"] if part["ref"] == root["bom-ref"])
    assert 10 < len(direct) < len(locked)


def can_be_tested(archive: Path) -> None:
    """Require what ``make check test`` needs in the source archive, and nothing of the workplace."""
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names >= {
        "Makefile",
        "pyproject.toml",
        "requirements.lock",
        "requirements-all.lock",
        "requirements-dev.lock",
        "CONTRIBUTING.md",
    }
    assert names >= {"src/torana/__init__.py", "tests/conftest.py", "scripts/gen_docs.py", "docs/quickstart.md"}
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "dist"))]


def test_uncommitted_changes_are_not_released(checkout: Checkout) -> None:
    place = checkout("changed")
    (place / "README.md").write_text("changed")

    with pytest.raises(AssertionError, match="Commit your changes first"):
        make_dist(place, umask=0o022, zone="UTC")


def test_metadata_names_authors_license_and_pythons(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        metadata = BytesParser().parsebytes(opened.read(f"torana-{__version__}.dist-info/METADATA"))

    assert (metadata["Version"], metadata["Author"]) == (__version__, "The Torana authors")
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    classifiers = metadata.get_all("Classifier", [])
    for minor in range(11, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers
