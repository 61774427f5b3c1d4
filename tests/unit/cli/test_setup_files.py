"""Changes to ``.env`` and ``torana.toml`` by ``torana setup``."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from torana.cli.commands.setup.files import (
    FileChange,
    change_dotenv,
    change_toml,
    difference,
    write_changes,
)
from torana.config.sources import read_dotenv
from torana.errors import ConfigInvalid, OperatorError

DOTENV = "# my keys\n\nexport OPENAI_API_KEY=old # of work\nOTHER='a b'"
TOML = """\
# my settings
port = 18790 # not the usual one

[connectors.irc]
host = "irc.example.org"
"""


def test_dotenv_keeps_comments_and_other_variables(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(DOTENV)
    change = change_dotenv(file, {"OPENAI_API_KEY": "new", "ADDED": "x y"})
    assert change.after == "# my keys\n\nOPENAI_API_KEY=new\nOTHER='a b'\nADDED='x y'\n"


def test_dotenv_variable_is_removed(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=1\nB=2\nA=3\n")
    assert change_dotenv(file, {"A": None, "C": None}).after == "B=2\n"


@pytest.mark.parametrize(
    "value", ["plain", "a b", "it's", 'quote"', "back\\slash", "$HOME", "#hash", "a=b", "ü"]
)
def test_dotenv_value_is_read_back(tmp_path: Path, value: str) -> None:
    file = tmp_path / ".env"
    write_changes([change_dotenv(file, {"A": value, "B": "1"})])
    assert read_dotenv(file).variables == {"A": value, "B": "1"}


def test_toml_keeps_comments_and_other_tables(tmp_path: Path) -> None:
    file = tmp_path / "torana.toml"
    file.write_text(TOML)
    change = change_toml(
        file, {("model",): "openai:x", ("connectors", "telegram", "token"): "$T", ("none",): None}
    )
    assert change.after == TOML.replace("usual one\n", 'usual one\nmodel = "openai:x"\n') + (
        '\n[connectors.telegram]\ntoken = "$T"\n'
    )


def test_toml_value_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "torana.toml"
    file.write_text(TOML)
    assert "port" not in change_toml(file, {("port",): None}).after


def test_unquoted_toml_value_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "torana.toml"
    file.write_text("model = openai:gpt-5\n")
    with pytest.raises(ConfigInvalid, match=r"line 1.*a text needs quotes, such as model = \"openai:gpt-5\""):
        change_toml(file, {})


def test_value_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "torana.toml"
    file.write_text("connectors = 1\n")
    with pytest.raises(ConfigInvalid, match="connectors is not a table"):
        change_toml(file, {("connectors", "irc", "host"): "x"})


SECRETS = """\
OPENAI_API_KEY=sk-old
WORDS="first-secret
second=secret
third-secret"
IRC_PASS=secret
KEY_2=secret # a secret
DATABASE=secret
TORANA_MODEL=openai:gpt
"""


def test_difference_of_dotenv_shows_no_values_but_the_model(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(SECRETS)
    others: dict[str, str | None] = dict.fromkeys(("WORDS", "KEY_2", "DATABASE"))
    text = difference(change_dotenv(file, {"OPENAI_API_KEY": "sk-new", "TORANA_MODEL": "builtin", **others}))
    assert "-OPENAI_API_KEY=********" in text
    assert "+OPENAI_API_KEY=********" in text
    assert "-TORANA_MODEL=openai:gpt" in text
    assert "+TORANA_MODEL=builtin" in text
    assert not [word for word in ("sk-", "secret") if word in text]


def test_difference_of_neighbouring_variables_shows_no_values(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(SECRETS)
    assert "secret" not in difference(change_dotenv(file, {"IRC_PASS": "other", "NEW": "secret"}))


def test_difference_of_toml_hides_secrets() -> None:
    before = """\
[c]
"token" = "secret"
other = { token = "secret" }
text = '''
secret'''
url = "https://ana:secret@host"
password2 = "secret"
port = 1
"""
    after = '[c]\nbot_token = "$BOT"\nport = 2\n[d.e]\nname = "x"\n'
    text = difference(FileChange(path=Path("x"), before=before, after=after))
    assert '+bot_token = "$BOT"\n+port = 2\n+[d.e]\n+name = "x"' in text
    assert "-port = 1" in text
    assert "secret" not in text


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    dotenv, toml = tmp_path / ".env", tmp_path / "torana.toml"
    dotenv.write_text("A=1\n")
    dotenv.chmod(0o644)
    toml.write_text("port = 1\n")
    toml.chmod(0o640)
    write_changes([change_dotenv(dotenv, {"A": "2"}), change_toml(toml, {("port",): 2})])
    assert [stat.S_IMODE(file.stat().st_mode) for file in (dotenv, toml)] == [0o600, 0o640]


def test_group_of_a_service_can_still_read_the_files(tmp_path: Path) -> None:
    """The files of the system's service belong to root and to the group of the service."""
    dotenv, toml = tmp_path / ".env", tmp_path / "torana.toml"
    others = [group for group in os.getgroups() if group != os.getegid()] or [4321]
    for file in (dotenv, toml):
        file.touch(mode=0o640)
        try:
            os.chown(file, -1, others[0])
        except PermissionError:
            pytest.skip("the user of the tests has one group")
    write_changes([change_dotenv(dotenv, {"A": "2"}), change_toml(toml, {("port",): 2})])
    for file in (dotenv, toml):
        found = file.stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (others[0], 0o640)


def test_linked_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("A=1\n")
    link = tmp_path / ".env"
    link.symlink_to("real")
    write_changes([change_dotenv(link, {"A": "2"})])
    assert link.is_symlink()
    assert (tmp_path / "real").read_text() == "A=2\n"


def test_no_file_changes_if_one_cannot_be_written(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("A=1\n")
    missing = tmp_path / "missing" / "torana.toml"
    with pytest.raises(OperatorError, match=r"cannot be written.*nothing was changed"):
        write_changes([change_dotenv(dotenv, {"A": "2"}), change_toml(missing, {("port",): 1})])
    assert dotenv.read_text() == "A=1\n"
    assert list(tmp_path.iterdir()) == [dotenv]


@pytest.mark.parametrize("there", ["A=1\n", None])
def test_written_file_is_restored_if_the_next_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str | None
) -> None:
    """A file that is mounted alone into a container can be read and written, but not replaced."""
    dotenv, toml = tmp_path / ".env", tmp_path / "torana.toml"
    toml.write_text("port = 1\n")
    if there is not None:
        dotenv.write_text(there)
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target == toml:
            raise OSError(16, "Device or resource busy")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OperatorError, match=r"torana\.toml: cannot be written \(Device or resource busy\)"):
        write_changes([change_dotenv(dotenv, {"A": "2"}), change_toml(toml, {("port",): 2})])
    assert toml.read_text() == "port = 1\n"
    assert (dotenv.read_text() if dotenv.exists() else None) == there
    assert {file.name for file in tmp_path.iterdir()} <= {".env", "torana.toml"}


def test_full_disk_changes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("A=1\n")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OperatorError, match=r"No space left on device.*free some space"):
        write_changes([change_dotenv(dotenv, {"A": "2"})])
    assert dotenv.read_text() == "A=1\n"
    assert list(tmp_path.iterdir()) == [dotenv]
