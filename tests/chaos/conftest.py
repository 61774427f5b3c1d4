"""The installed program in a separate process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.program import Program
from tests.waiting import eventually


@pytest.fixture(name="eventually")
def _eventually() -> Callable[[Callable[[], Any]], Any]:
    return eventually


@pytest.fixture(scope="session")
def command(installed: Path) -> Path:
    """The installed ``torana`` command."""
    return installed / "torana"


@pytest.fixture
def new_program(command: Path, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Makes the program, not yet started, with its own settings."""
    with ExitStack() as made:

        def make(**settings: str) -> Program:
            home = tmp_path / "home"
            home.mkdir()
            program = Program(command=command, home=home, settings=settings)
            # pytest shows it for a failed test
            made.callback(lambda: sys.stdout.write(program.end_of_output()))
            made.callback(program.kill)
            return program

        yield make
