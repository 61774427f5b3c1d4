"""The ``torana`` command: help, version, mistyped commands, and the failures of every command."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from torana import __version__, cli
from torana.cli import COMMANDS
from torana.errors import ConfigInvalid, OperatorError
from torana.store.backup.entries import DATABASE_NAME
from torana.store.engine.migrate import migrate

Command = Callable[..., tuple[int, str, str]]

root: Any = typer.main.get_command(cli.app)


def _leaves(command: Any, *names: str) -> list[tuple[str, Any]]:
    """Return every leaf command with its full name."""
    if not hasattr(command, "list_commands"):
        return [(" ".join(names), command)]
    parts = [(name, command.get_command(None, name)) for name in command.list_commands(None)]
    return [leaf for name, part in parts for leaf in _leaves(part, *names, name)]


LEAVES = _leaves(root)


def test_all_documented_commands_exist() -> None:
    assert {name.partition(" ")[0] for name, _ in LEAVES} == set(COMMANDS)


def test_version_is_printed(command: Command) -> None:
    assert command("--version") == (0, f"{__version__}\n", "")


def test_version_has_a_short_flag(command: Command) -> None:
    assert command("-V") == (0, f"{__version__}\n", "")


def test_package_runs_as_a_module() -> None:
    run = [sys.executable, "-m", "torana", "--version"]
    assert (
        subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout == f"{__version__}\n"
    )


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("name", ["", *COMMANDS, *(name for name, _ in LEAVES)])
def test_every_command_has_help(command: Command, name: str, flag: str) -> None:
    code, out, err = command(*name.split(), flag)
    assert (code, err) == (0, "")
    assert "Usage: torana" in out
    assert max(map(len, out.splitlines())) <= 80


#: Modules that take longer to import than the help of a command takes.
SLOW_MODULES = (
    "asyncio",
    "fastapi",
    "httpx2",
    "openai",
    "pydantic",
    "pydantic_ai",
    "rich",
    "sqlalchemy",
    "uvicorn",
)

#: Prints the help of every command, and the slow modules that this has imported.
PRINT_HELP = f"""
import sys
from torana.cli import app
for name in sys.stdin.read().splitlines():
    try:
        app([*name.split(), "--help"], prog_name="torana")
    except SystemExit:
        print(name, sorted(sys.modules.keys() & set({SLOW_MODULES})), file=sys.stderr)
"""


def test_help_imports_no_slow_module() -> None:
    names = ["", *COMMANDS, *(name for name, _ in LEAVES)]
    run = [sys.executable, "-c", PRINT_HELP]
    ended = subprocess.run(run, input="\n".join(names), capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr.splitlines() == [f"{name} []" for name in names]


def test_help_page_needs_no_module_of_a_command() -> None:
    run = [sys.executable, "-X", "importtime", "-m", "torana", "--help"]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert "torana.cli" in ended.stderr
    assert "torana.cli.commands" not in ended.stderr


#: Runs commands, and prints which of the large libraries each has imported.
RUN_COMMANDS = """
import sys
from torana.cli import app
from torana.errors import OperatorError
for line in sys.stdin.read().splitlines():
    try:
        app(line.split(), prog_name="torana")
    except (SystemExit, OperatorError) as ended:
        large = sys.modules.keys() & {"fastapi", "openai", "pydantic_ai"}
        print("ran", line, ended.code, sorted(large), file=sys.stderr)
"""


def test_quick_commands_import_no_large_library(place: Path) -> None:
    (place / "data").mkdir()
    migrate(place / "data" / DATABASE_NAME)
    lines = [
        *("audit", "config show", "deliveries list", "pair list", "schedules list", "sessions list"),
        *("skills list", "skills show calculator", "token create --user ada", "token list", "turns list"),
        "usage",
    ]
    needs_gateway = "user erase ada --yes"
    run = [sys.executable, "-c", RUN_COMMANDS]
    given = "\n".join([*lines, needs_gateway])
    ended = subprocess.run(run, input=given, capture_output=True, text=True, timeout=60, check=True)
    ran = [line for line in ended.stderr.splitlines() if line.startswith("ran ")]
    assert ran == [*(f"ran {line} 0 []" for line in lines), f"ran {needs_gateway} operator_error []"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_line_is_a_sentence_that_fits(name: str) -> None:
    assert COMMANDS[name].endswith(".")
    assert len(COMMANDS[name]) + max(map(len, COMMANDS)) + 4 <= 80


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(command: Command, shell: str) -> None:
    code, out, err = command("completion", shell)
    assert (code, err) == (0, "")
    assert f"_TORANA_COMPLETE=complete_{shell}" in out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("torana deli", ["deliveries"]), ("torana skills in", ["install"]), ("torana pair list --js", ["--json"])],
)
def test_bash_completes_commands_and_options(
    command: Command, monkeypatch: pytest.MonkeyPatch, typed: str, completed: list[str]
) -> None:
    monkeypatch.setenv("_TORANA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    code, out, err = command()
    assert (code, out.split(), err) == (0, completed, "")


@pytest.mark.parametrize(("name", "leaf"), LEAVES, ids=[name for name, _ in LEAVES])
def test_commands_and_options_have_descriptions(name: str, leaf: Any) -> None:
    assert leaf.help, name
    assert [param.name for param in leaf.params if not param.help] == []


#: The commands without a document as their result, each with the reason.
WITHOUT_JSON = {
    "serve": "runs until it is stopped",
    "chat": "is a conversation",
    "console": "opens a browser; `--print` writes the address",
    "completion": "prints a script for a shell",
    "sessions export": "writes a line of JSON for each message by default",
}


def test_every_other_command_prints_json_on_demand() -> None:
    without = {name for name, leaf in LEAVES if not any("--json" in param.opts for param in leaf.params)}
    assert without == set(WITHOUT_JSON)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(("chta",), "chat"), (("doctr",), "doctor"), (("back-up",), "backup"), (("skills", "lst"), "list")],
)
def test_mistyped_command_suggests_the_nearest(command: Command, typed: tuple[str, ...], meant: str) -> None:
    code, out, err = command(*typed)
    assert (code, out) == (2, "")
    assert f"Did you mean '{meant}'?" in err


def test_unknown_command_is_refused(command: Command) -> None:
    code, _, err = command("zzz")
    assert code == 2
    assert "No such command 'zzz'." in err


@pytest.mark.parametrize(
    "arguments", [("chat", "hi"), ("doctor",), ("skills", "list"), ("backup",), ("serve",)]
)
def test_invalid_setting_gives_one_line_and_exit_code_2(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TORANA_PORT", "high")
    assert command(*arguments) == (2, "", 'TORANA_PORT: "high" is not a whole number from 1 to 65535\n')


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OperatorError("mend this"), 1, "mend this"),
        (ConfigInvalid("set that"), 2, "set that"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), 1, "/data/x: No space left on device"),
        (OSError("something odd"), 1, "something odd"),
    ],
)
def test_operator_errors_are_printed_in_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, line: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("torana.cli.flags.settings_from", fail)
    assert command("skills", "list") == (code, "", f"{line}\n")


def test_unencodable_characters_become_question_marks(add_skill: Callable[..., object]) -> None:
    add_skill("tea", "---\nname: tea\ndescription: Brews 茶 for you.\n---\n")
    run = [sys.executable, "-m", "torana", "skills", "show", "tea"]
    shown = subprocess.run(
        run, capture_output=True, timeout=60, check=False, env=os.environ | {"PYTHONIOENCODING": "latin-1"}
    )
    assert b"Brews ? for you." in shown.stdout, shown.stderr


def test_closed_output_pipe_is_not_an_error(place: object) -> None:
    run = f"{sys.executable} -m torana skills list --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", run], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout in ("{0\n", "{1\n")
    assert ended.stderr == ""
