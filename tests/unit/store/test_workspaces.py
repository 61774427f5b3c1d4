"""Workspaces store a user's files, and no name or link leads out of the folder."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torana.store.workspaces import FileFault, Workspaces


def _names(workspaces: Workspaces, user: str = "ana") -> list[str]:
    return [entry.name for entry in workspaces.list_files(user)]


def _read(workspaces: Workspaces, name: str, user: str = "ana") -> bytes:
    return workspaces.read(user, name, limit=10_000)


def test_files_are_stored_and_read(workspaces: Workspaces, tmp_path: Path) -> None:
    assert not workspaces.write("ana", "notes.txt", b"milk")
    assert not workspaces.write("ana", "trips/oslo/plan.md", b"ferry")
    assert workspaces.write("ana", "notes.txt", b"milk, eggs")

    again = Workspaces(directory=tmp_path / "workspaces", max_bytes=10_000, max_files=5)  # after a restart
    assert _names(again) == ["notes.txt", "trips/oslo/plan.md"]
    assert [entry.size for entry in again.list_files("ana")] == [10, 5]
    assert (_read(again, "notes.txt"), _read(again, "trips/oslo/plan.md")) == (b"milk, eggs", b"ferry")
    assert again.read("ana", "notes.txt", limit=3) == b"mil"


def test_users_have_separate_folders(workspaces: Workspaces) -> None:
    workspaces.write("ana", "notes.txt", b"ana's")
    assert _names(workspaces, "ben") == []
    with pytest.raises(FileFault, match=r"no file notes\.txt"):
        _read(workspaces, "notes.txt", "ben")
    with pytest.raises(FileFault):
        _read(workspaces, f"../{workspaces.folder('ana').name}/notes.txt", "ben")
    for user in ("../ana", "/", "ANA", "ana\0", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
        assert workspaces.folder(user).parent == workspaces.folder("ana").parent
        assert workspaces.folder(user) != workspaces.folder("ana")


def test_files_are_private_on_the_machine(workspaces: Workspaces) -> None:
    workspaces.write("ana", "a/b.txt", b"secret")
    folder = workspaces.folder("ana")
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "a", folder / "a/b.txt")] == [
        0o700,
        0o700,
        0o600,
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/",
        "/etc/passwd",
        "../torana.db",
        "a/../../torana.db",
        "a/./b",
        "a//b",
        "a/",
        ".hidden",
        "-rf",
        " a",
        "a ",
        "a.",
        "a\0b",
        "a\nb",
        "a\tb",
        "a\\b",
        "..\\b",
        "c:b",
        "a*",
        "~/a",
        "$HOME",
        "a\u202etxt.exe",
        "a\u200bb",
        "a\u00adb",
        "\uff0e\uff0e\uff0fa",
        "\u2025/a",
        "a\u2215b",
        "a\u2044b",
        "\u2024\u2024/a",
        "\ud800",
        "\U000e0041",
        "x" * 201,
        "é" * 101,
        "/".join("abcdefghi"),
    ],
)
def test_invalid_names_are_refused(workspaces: Workspaces, tmp_path: Path, name: str) -> None:
    before = {path for path in tmp_path.rglob("*") if "workspaces" not in path.parts}
    with pytest.raises(FileFault, match="name"):
        workspaces.write("ana", name, b"x")
    with pytest.raises(FileFault, match="name"):
        _read(workspaces, name)
    with pytest.raises(FileFault, match="name"):
        workspaces.delete("ana", name)
    assert {path for path in tmp_path.rglob("*") if "workspaces" not in path.parts} == before


@pytest.mark.parametrize(
    "name", ["a", "Einkäufe, März.txt", "買い物.md", "हिन्दी.txt", "2026-03-02 (draft) +1@x=y&z_'.txt"]
)
def test_ordinary_names_are_accepted(workspaces: Workspaces, name: str) -> None:
    workspaces.write("ana", name, b"x")
    assert _names(workspaces) == [name]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Notes.txt", "notes.TXT"),
        ("Straße.txt", "STRASSE.txt"),
        ("caf\u00e9.txt", "cafe\u0301.txt"),
        ("ﬁle.txt", "file.txt"),
        ("notes.txt", "ｎｏｔｅｓ.txt"),
        ("Trips/a.txt", "trips/A.txt"),
    ],
)
def test_equivalent_names_refer_to_one_file(workspaces: Workspaces, first: str, second: str) -> None:
    workspaces.write("ana", first, b"old")
    assert _read(workspaces, second) == b"old"
    assert workspaces.write("ana", second, b"new")
    assert len(_names(workspaces)) == 1
    assert _read(workspaces, first) == b"new"


def test_links_are_not_followed(workspaces: Workspaces, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    workspaces.write("ana", "a.txt", b"x")
    folder = workspaces.folder("ana")
    (folder / "link.txt").symlink_to(secret / "key")
    (folder / "dangling.txt").symlink_to(secret / "new")
    (folder / "out").symlink_to(secret)
    (folder / "hard.txt").hardlink_to(secret / "key")
    for name in ("link.txt", "hard.txt", "out/key"):
        with pytest.raises(FileFault, match=r"not a plain file|no file"):
            _read(workspaces, name)
    for name in ("link.txt", "dangling.txt", "hard.txt", "out/key", "out/new"):
        with pytest.raises(FileFault):
            workspaces.write("ana", name, b"overwritten")
        with pytest.raises(FileFault):
            workspaces.delete("ana", name)
    assert _names(workspaces) == ["a.txt", "hard.txt"]
    assert dict(workspaces.contents("ana")) == {"a.txt": b"x"}
    assert {path.name: path.read_text() for path in secret.iterdir()} == {"key": "key"}


def test_user_folder_that_is_a_link_is_refused(workspaces: Workspaces, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    workspaces.folder("ana").parent.mkdir()
    workspaces.folder("ana").symlink_to(elsewhere)
    with pytest.raises(FileFault):
        workspaces.write("ana", "a.txt", b"x")
    assert list(elsewhere.iterdir()) == []


def test_only_regular_files_are_opened(workspaces: Workspaces) -> None:
    workspaces.write("ana", "a/b.txt", b"x")
    os.mkfifo(workspaces.folder("ana") / "pipe")
    with pytest.raises(FileFault, match="not a plain file"):  # and is not opened
        _read(workspaces, "pipe")
    for name in ("a", "pipe"):
        with pytest.raises(FileFault):
            workspaces.write("ana", name, b"x")
        with pytest.raises(FileFault):
            workspaces.delete("ana", name)
    with pytest.raises(FileFault, match="no file"):
        _read(workspaces, "a/b.txt/c")
    with pytest.raises(FileFault):
        workspaces.write("ana", "a/b.txt/c", b"x")
    assert _names(workspaces) == ["a/b.txt"]


def test_byte_quota_is_enforced(workspaces: Workspaces) -> None:
    workspaces.write("ana", "a.txt", b"x" * 9_000)
    with pytest.raises(FileFault, match="1,000 are free"):
        workspaces.write("ana", "b.txt", b"x" * 1_001)
    workspaces.write("ana", "A.txt", b"x" * 10_000)  # replaces the old content
    with pytest.raises(FileFault, match="10,000 are free"):
        workspaces.write("ana", "a.txt", b"x" * 10_001)
    assert len(_read(workspaces, "a.txt")) == 10_000
    workspaces.write("ben", "a.txt", b"x" * 10_000)


def test_file_quota_is_enforced(workspaces: Workspaces) -> None:
    for number in range(5):
        workspaces.write("ana", f"{number}/{number}.txt", b"x")
    with pytest.raises(FileFault, match="5 files"):
        workspaces.write("ana", "new/new.txt", b"x")
    assert not (workspaces.folder("ana") / "new").exists()
    workspaces.write("ana", "3/3.txt", b"y")
    workspaces.delete("ana", "4/4.txt")
    workspaces.write("ana", "new/new.txt", b"x")


def test_concurrent_writes_do_not_exceed_the_quota(workspaces: Workspaces) -> None:
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        try:
            workspaces.write("ana", f"{number}.txt", b"x" * 3_000)
        except FileFault:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) == 3


def test_crash_leaves_the_old_file(workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces.write("ana", "a.txt", b"old")

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        workspaces.write("ana", "a.txt", b"new")
    assert (_read(workspaces, "a.txt"), _names(workspaces)) == (b"old", ["a.txt"])
    unfinished = workspaces.folder("ana").parent / ".unfinished"
    assert len(list(unfinished.iterdir())) == 1
    monkeypatch.undo()
    workspaces.write("ana", "b.txt", b"x")
    assert list(unfinished.iterdir()) == []


def test_files_are_deleted(workspaces: Workspaces) -> None:
    workspaces.write("ana", "a/b/c.txt", b"x")
    workspaces.write("ana", "a/d.txt", b"x")
    workspaces.delete("ana", "A/B/C.txt")
    assert sorted(path.name for path in workspaces.folder("ana").rglob("*")) == ["a", "d.txt"]
    with pytest.raises(FileFault, match="no file"):
        workspaces.delete("ana", "a/b/c.txt")


def test_workspace_is_erased(workspaces: Workspaces, tmp_path: Path) -> None:
    workspaces.write("ana", "a/b.txt", b"x")
    workspaces.write("ben", "c.txt", b"x")
    (tmp_path / "kept").write_text("kept")
    (workspaces.folder("ana") / "link").symlink_to(tmp_path / "kept")
    assert workspaces.erase("ana") == 1
    assert not workspaces.folder("ana").exists()
    assert workspaces.erase("ana") == 0
    assert (_names(workspaces, "ben"), (tmp_path / "kept").read_text()) == (["c.txt"], "kept")


@given(name=st.text(max_size=40) | st.text("./\\~aA\0\u202e\uff0e\u2024é ", max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_leads_out_of_the_folder(workspaces: Workspaces, name: str) -> None:
    try:
        workspaces.write("ana", name, b"x")
    except FileFault:
        return
    assert _read(workspaces, name) == b"x"
    (entry,) = workspaces.list_files("ana")
    assert (workspaces.folder("ana") / entry.name).resolve().is_relative_to(workspaces.folder("ana").resolve())
    workspaces.delete("ana", name)
    assert workspaces.list_files("ana") == []
