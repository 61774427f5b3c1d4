"""Fixtures that run the operator's commands inside the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torana.cli import main
from torana.store.engine.migrate import migrate

#: Exit code, standard output and standard error of a command.
Outcome = tuple[int, str, str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a future data directory, and no TORANA variables."""
    for name in [name for name in os.environ if name.startswith("TORANA_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("PYDANTIC_AI_NO_BANNER", "1")  # monkeypatch restores the value that a command sets
    monkeypatch.setenv("TORANA_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def data(place: Path) -> Path:
    """A data directory with a database."""
    directory = place / "data"
    directory.mkdir(exist_ok=True)
    migrate(directory / "torana.db")
    return directory


@pytest.fixture
def command(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs ``torana …`` and returns the exit code, standard output and standard error."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["torana", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def add_skill(place: Path) -> Callable[..., Path]:
    """Writes a user skill with the given text."""

    def add(slug: str, text: str) -> Path:
        folder = place / "data" / "skills" / slug
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
        return folder

    return add
