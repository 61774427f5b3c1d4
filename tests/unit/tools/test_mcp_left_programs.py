"""Programs of MCP servers that a killed gateway left running."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torana.tools.mcp.stdio import end_left_program, note_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A program that ignores the end of its input, and waits for a child."""
    command = ["/bin/sh", "-c", "trap '' TERM; sleep 600; sleep 600"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        yield process
        process.kill()


def test_noted_program_is_killed(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    note_program(tmp_path / "running" / "notes", program.pid)

    end_left_program(tmp_path / "running" / "notes")

    assert program.wait(timeout=60) == -9


@pytest.mark.parametrize("noted", ["", "0 ", "-1 ", "text", "{pid}", "{pid} 1 other-boot"])
def test_other_processes_are_left_alone(program: subprocess.Popen[bytes], tmp_path: Path, noted: str) -> None:
    file = tmp_path / "notes"
    file.write_text(noted.format(pid=program.pid))

    end_left_program(file)
    end_left_program(tmp_path / "missing")

    assert program.poll() is None


def test_process_in_the_group_of_another_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        note_program(tmp_path / "notes", process.pid)

        end_left_program(tmp_path / "notes")

        assert process.poll() is None
        process.kill()
