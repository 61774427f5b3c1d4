"""Directories granted to a script, while another script with write access nearby changes them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.sandbox.conftest import NOBODY, Gateway

LOOK = """
import os, sys
print(sorted(os.listdir(sys.argv[1])))
"""


@pytest.fixture
def granted(gateway: Gateway) -> Iterator[Path]:
    """A granted directory inside one that another skill may write to, beside one that was not granted."""
    outer = gateway.home / "out" / "outer"
    for folder, file in (
        (outer / "middle" / "granted", "original"),
        (outer / "private" / "granted", "private"),
    ):
        folder.mkdir(parents=True)
        (folder / file).touch()
    for folder in (outer, *(path for path in outer.rglob("*") if path.is_dir())):
        os.chown(folder, gateway.user or NOBODY, -1)
    yield outer / "middle" / "granted"
    shutil.rmtree(outer)


@pytest.mark.parametrize("mode", ["directories", "writable"])
@pytest.mark.parametrize("level", ["itself", "the one above"])
def test_directory_replaced_by_a_link_after_its_check_is_not_followed(
    gateway: Gateway, granted: Path, mode: str, level: str
) -> None:
    moved, link = (granted, "../private/granted") if level == "itself" else (granted.parent, "private")
    block: dict[str, Any] = {mode: [str(granted)]}
    gateway.write(LOOK, **block)

    result = gateway.call(arguments=[str(granted)], swap={"moved": str(moved), "link": link})

    assert moved.is_symlink()
    assert (granted / "private").exists()
    assert result.text == "exit code 0\nstdout:\n['original']"


def test_writes_go_to_the_granted_directory(gateway: Gateway, granted: Path) -> None:
    gateway.write("import sys; open(f'{sys.argv[1]}/made', 'w').close()", writable=[str(granted)])

    gateway.call(arguments=[str(granted)], swap={"moved": str(granted), "link": "../private/granted"})

    assert (granted.with_name("moved") / "made").exists()
    assert not (granted / "made").exists()


def test_directory_declared_readable_and_writable_is_writable(gateway: Gateway, granted: Path) -> None:
    both = [str(granted)]
    gateway.write("import sys; open(f'{sys.argv[1]}/made', 'w').close()", directories=both, writable=both)

    assert gateway.call(arguments=both).text == "exit code 0"

    assert (granted / "made").exists()


def test_constantly_changing_directory_is_shown_or_refused(gateway: Gateway, granted: Path) -> None:
    gateway.write(LOOK, directories=[str(granted)])

    with changing(granted):
        seen = {gateway.call(arguments=[str(granted)]).text for _ in range(20)}

    shown = {"exit code 0\nstdout:\n['original']"}
    refused = {
        text for text in seen if text.startswith(("The directory '", "The sandbox cannot be set up: bwrap: "))
    }
    assert seen <= shown | refused


def test_only_the_writable_inner_directory_is_writable(gateway: Gateway, granted: Path) -> None:
    outer = granted.parent.parent
    gateway.write(
        """
        import sys
        for path in sys.argv[1:]:
            try:
                print(open(f"{path}/made", "w").close())
            except OSError as error:
                print(error.strerror)
        """,
        directories=[str(outer)],
        writable=[str(granted)],
    )

    result = gateway.call(arguments=[str(granted), str(outer), str(granted.parent)])

    assert result.stdout.splitlines() == ["None", *["Read-only file system"] * 2]


def test_no_descriptor_leads_out_of_the_sandbox(gateway: Gateway, granted: Path) -> None:
    gateway.write(
        """
        import os
        for folder in ("/proc/1/fd", "/proc/self/fd"):
            links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)[:-1]]
            print([link.partition(":")[0] for link in links])
        """,
        directories=[str(granted.parent)],
        writable=[str(granted)],
    )

    first, own = map(eval, gateway.call().stdout.splitlines())

    assert own == ["/memfd", "pipe", "pipe"]
    assert set(first) <= {"/memfd", "pipe", "anon_inode"}


@contextmanager
def changing(path: Path) -> Generator[None]:
    """Replace the directory by a link and put it back, repeatedly, during the block."""
    aside = path.with_name("aside")
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            path.rename(aside)
            path.symlink_to("../private/granted")
            path.unlink()
            aside.rename(path)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        yield
    finally:
        done.set()
        changer.join()


def test_script_with_a_writable_directory_may_write_a_file_to_the_disk(gateway: Gateway, granted: Path) -> None:
    script = "import ctypes; libc = ctypes.CDLL(None); print(libc.fsync(-1), libc.syncfs(-1))"
    gateway.write(script, writable=[str(granted)])

    # There is no such file, so a call with an effect fails.
    assert gateway.call().stdout == "-1 0"
