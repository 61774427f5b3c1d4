"""Looking at a database without changing it."""

from pathlib import Path

from torana.store.check import check_database
from torana.store.migrate import HEAD


def test_a_whole_database_is_ok(path: Path) -> None:
    before = path.read_bytes()

    assert check_database(path) == (HEAD, "ok")
    assert path.read_bytes() == before


def test_a_missing_one_is_not_made(tmp_path: Path) -> None:
    at, verdict = check_database(tmp_path / "torana.db")

    assert (at, verdict) == (None, "unable to open database file")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "torana.db").touch()

    assert check_database(tmp_path / "torana.db") == (None, "ok")


def test_a_damaged_one_is_told_in_sqlites_words(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)

    at, verdict = check_database(path)

    assert "malformed" in verdict or "btree" in verdict.lower()
    assert at in (None, HEAD)
