"""``torana setup`` with bad input: nothing is half-written, and the next step is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.cli.terminal import command_in
from tests.standins.servers import free_port

from torana.testing.openai_server import MODEL_NAME, OpenAIStandIn

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

TOML = """\
# Written by hand.
port = 18790 # not the usual one

  [connectors.irc] # our network
host = 'irc.example.org'
nick = "torana"
"""
DOTENV = """\
# Written by hand.

export OTHER='a b' # kept
"""

#: The end of a question whose answer is not shown. The last space comes once the terminal hides what is typed.
HIDDEN = "(not shown): "


@pytest.fixture
def server() -> Iterator[OpenAIStandIn]:
    with OpenAIStandIn(api_key="sk-right") as server:
        yield server


def write_by_hand(directory: Path) -> None:
    (directory / "torana.toml").write_text(TOML)
    (directory / ".env").write_text(DOTENV)


def assert_unchanged(directory: Path) -> None:
    """The directory holds the same settings as before, and no remains of new ones."""
    assert (directory / "torana.toml").read_text() == TOML
    assert (directory / ".env").read_text() == DOTENV
    assert not [file for file in directory.iterdir() if file.name.startswith((".torana.toml.", ".env."))]


def run_setup(
    place: Place, *arguments: str, cwd: Path, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a setup without questions in a directory, behind the command ``before``."""
    return subprocess.run(
        [*before, sys.executable, "-m", "torana", "setup", "--yes", *arguments],
        cwd=cwd,
        env=place.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_wrong_key_changes_nothing_and_can_be_typed_again(place: Place, server: OpenAIStandIn) -> None:
    write_by_hand(place.path)
    with command_in(place, "setup", "--base-url", server.url, "--platform", "none", "--no-service") as terminal:
        for key in ("sk-wrong", "sk-right"):
            terminal.expect("Does the server need a key?")
            terminal.type("y\n")
            terminal.expect(HIDDEN)
            terminal.type(f"{key}\n")
            if key == "sk-wrong":
                assert "refused the key" in terminal.expect("Try again? [Y/n]: ")
                assert_unchanged(place.path)
                terminal.type("y\n")
        terminal.expect("Number or name")
        terminal.type("\n")
        terminal.expect("Require a token")
        terminal.type("n\n")
        terminal.expect("Write these changes?")
        terminal.type("y\n")
        terminal.expect("Try:")
        assert terminal.exit_code() == 0
    assert (place.path / ".env").read_text() == f"{DOTENV}TORANA_MODEL_API_KEY=sk-right\n"


def test_wrong_key_in_the_file_can_be_replaced(place: Place, server: OpenAIStandIn) -> None:
    (place.path / ".env").write_text("TORANA_MODEL_API_KEY=sk-expired # of work\n")
    with command_in(place, "setup", "--base-url", server.url, "--platform", "none", "--no-service") as terminal:
        terminal.expect("Use TORANA_MODEL_API_KEY in .env?")
        terminal.type("y\n")
        assert "refused the key" in terminal.expect("Try again?")
        terminal.type("y\n")
        terminal.expect("Use TORANA_MODEL_API_KEY in .env?")
        terminal.type("n\n")
        terminal.expect("Does the server need a key?")
        terminal.type("y\n")
        terminal.expect(HIDDEN)
        terminal.type("sk-right\n")
        for question in ("Number or name", "Require a token", "Write these changes?"):
            terminal.expect(question)
            terminal.type("\n")
        assert terminal.exit_code() == 0
    assert (place.path / ".env").read_text() == "TORANA_MODEL_API_KEY=sk-right\n"


@pytest.mark.long
def test_unreachable_server_changes_nothing(place: Place) -> None:
    write_by_hand(place.path)
    url = f"http://127.0.0.1:{free_port()}/v1"
    code, _, err = place.run("setup", "--base-url", url, "--yes")
    assert code == 1
    assert f"{url} did not list its models" in err
    assert_unchanged(place.path)


def test_read_only_directory_is_reported_and_unchanged(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "settings"
    directory.mkdir()
    write_by_hand(directory)
    directory.chmod(0o555)
    # Root may write everywhere, unless it gives this right up.
    before = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    done = run_setup(place, "--provider", "builtin", "--token", cwd=directory, before=before)
    directory.chmod(0o755)
    assert done.returncode == 1
    assert (
        "cannot be written (Permission denied); nothing was changed; make the directory writable" in done.stderr
    )
    assert_unchanged(directory)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with settings on a full file system."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(directory)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode().strip()}")
    try:
        write_by_hand(directory)
        with (directory / "filling").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_full_disk_is_reported_and_unchanged(place: Place, full_disk: Path) -> None:
    done = run_setup(place, "--provider", "builtin", "--token", cwd=full_disk)
    assert done.returncode == 1
    assert "(No space left on device); nothing was changed" in done.stderr
    assert "free some space, and run the command again" in done.stderr
    assert_unchanged(full_disk)


def test_file_size_limit_is_reported_and_nothing_changes(place: Place) -> None:
    write_by_hand(place.path)
    limit = ("prlimit", "--fsize=10")
    done = run_setup(place, "--provider", "builtin", "--token", cwd=place.path, before=limit)
    assert done.returncode == 1
    assert "(File too large); nothing was changed" in done.stderr
    assert_unchanged(place.path)


#: The questions before the settings are written, and answers.
QUESTIONS = (
    ("Number or name", "other"),
    ("Base URL of the API", "URL"),
    ("Does the server need a key?", "y"),
    (HIDDEN, "sk-right"),
    ("Number or name", MODEL_NAME),
    ("Require a token", "n"),
    ("Number or name", "none"),
    ("Write these changes?", "y"),
)


@pytest.mark.long
@pytest.mark.parametrize("last", range(len(QUESTIONS)), ids=[question for question, _ in QUESTIONS])
def test_ctrl_c_at_a_question_changes_nothing(place: Place, server: OpenAIStandIn, last: int) -> None:
    write_by_hand(place.path)
    with command_in(place, "setup") as terminal:
        for question, keys in QUESTIONS[:last]:
            terminal.expect(question)
            terminal.type(f"{server.url if keys == 'URL' else keys}\n")
        terminal.expect(QUESTIONS[last][0])
        terminal.press_ctrl_c("stopped; `torana setup` starts again, and keeps what is written")
        assert terminal.exit_code() == 1
    assert_unchanged(place.path)


@pytest.mark.long
def test_ctrl_c_after_the_settings_are_written_keeps_them(place: Place, server: OpenAIStandIn) -> None:
    write_by_hand(place.path)
    with command_in(place, "setup") as terminal:
        for question, keys in QUESTIONS:
            terminal.expect(question)
            terminal.type(f"{server.url if keys == 'URL' else keys}\n")
        terminal.expect("Install the gateway as a service?")
        terminal.press_ctrl_c("stopped; `torana setup` starts again, and keeps what is written")
        assert terminal.exit_code() == 1
    assert "sk-right" in (place.path / ".env").read_text()
    code, out, _ = place.run("config", "show")
    assert code == 0
    assert f"openai-chat:{MODEL_NAME}" in out
