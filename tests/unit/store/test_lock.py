"""The lock that allows one gateway per data directory."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from torana.errors import DataDirBusy, DataDirUnusable
from torana.store.engine.lock import LOCK_NAME, DataDirLock, read_address

ADDRESS = "http://127.0.0.1:18789"

HOLD = """
import pathlib, sys
from torana.store.engine.lock import DataDirLock
with DataDirLock(data_dir=pathlib.Path(sys.argv[1]), address=sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Generator[subprocess.Popen[bytes]]:
    """The process of another gateway."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), ADDRESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_lock_creates_a_private_directory(tmp_path: Path) -> None:
    data_dir = tmp_path / "a" / "b"

    with DataDirLock(data_dir=data_dir, address=ADDRESS):
        assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE((data_dir / LOCK_NAME).stat().st_mode) == 0o600
        assert read_address(data_dir) == ADDRESS


def test_second_gateway_is_refused_with_the_address_of_the_first(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(DataDirBusy, match=rf"already running at {ADDRESS} .*--data-dir"):
        DataDirLock(data_dir=tmp_path, address="http://other")

    assert read_address(tmp_path) == ADDRESS


def test_lock_is_released_when_the_holder_is_killed(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()

    assert (tmp_path / LOCK_NAME).read_text() == ADDRESS
    assert read_address(tmp_path) is None
    with DataDirLock(data_dir=tmp_path, address="http://a"):
        assert read_address(tmp_path) == "http://a"


def test_release_allows_another_lock(tmp_path: Path) -> None:
    first = DataDirLock(data_dir=tmp_path, address=ADDRESS)
    first.release()
    first.release()

    assert read_address(tmp_path) is None
    with DataDirLock(data_dir=tmp_path, address=ADDRESS):
        pass


def test_directory_without_a_lock_has_no_address(tmp_path: Path) -> None:
    assert read_address(tmp_path) is None


def test_reader_lock_is_not_reported_as_a_gateway(tmp_path: Path) -> None:
    file = os.open(tmp_path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_SH)

    with pytest.raises(DataDirBusy, match="another process"):
        DataDirLock(data_dir=tmp_path, address=ADDRESS)

    os.close(file)
    with DataDirLock(data_dir=tmp_path, address=ADDRESS):
        pass


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_path_that_is_not_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DataDirUnusable, match=r"cannot use the data directory .*--data-dir"):
        DataDirLock(data_dir=tmp_path / name, address=ADDRESS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_unwritable_lock_is_refused_and_released(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).symlink_to("/dev/full")

    with pytest.raises(DataDirUnusable):
        DataDirLock(data_dir=tmp_path, address=ADDRESS)
